/* Where in a cgroup tree this process is, from mountinfo and /proc/self/cgroup. */
#ifndef CRUN_LAUNCHER_CGROUP_PATH_H
#define CRUN_LAUNCHER_CGROUP_PATH_H

#define CGROUP_PATH_MAX 1024

struct cgroup_path {
    char mount[CGROUP_PATH_MAX]; /* where the tree is mounted */
    char own[CGROUP_PATH_MAX];   /* folder of this process's group: mount, or a folder below it */
};

/* What the kernel says about a process's groups, read once for several look-ups. */
struct cgroup_tables {
    char *groups, *mounts; /* NULL: cannot be read */
};

/* proc: "/proc/self". Some 50 us. */
void cgroup_tables_read(struct cgroup_tables *ret, const char *proc);
void cgroup_tables_free(struct cgroup_tables *t);

/* controller: one of cgroup v1 ("cpu"), NULL: the v2 tree. -ENOENT: no such tree; -ENAMETOOLONG. */
int cgroup_tables_find(const struct cgroup_tables *t, const char *controller, struct cgroup_path *ret);

#endif
