/* Parses the hosts of -H and --hostfile, with mpirun's syntax. Pure, except for reading the file.
 *
 *     -H node1:4,node2,user@node3:2,[fd00::1]:8
 *     node1 slots=4      # Open MPI, DeepSpeed
 *     node2:4            # MPICH
 *     node3 # one line per slot (PBS): the same host twice means two slots
 *
 * A host that is named once and without a number has --nproc-per-node workers. */
#ifndef CRUN_LAUNCHER_HOSTS_H
#define CRUN_LAUNCHER_HOSTS_H

#include <stdbool.h>
#include <stddef.h>

struct err;

#define HOSTS_MAX 4096
#define HOSTS_NAME_MAX 255

struct host {
    char name[HOSTS_NAME_MAX + 1]; /* without brackets; perhaps with a user in front: "user@node3" */
    int slots;                     /* 0: not given */
};

struct hosts {
    struct host *v;
    int n;
    size_t cap;
    const char *unused; /* a key in a line that crun ignores; NULL: none; static storage */
};

/* Add hosts to h. what: "-H", named in errors. ERR_USAGE; -ENOMEM. */
int hosts_add_list(struct hosts *h, const char *list, const char *what, struct err *e);
int hosts_add_text(struct hosts *h, const char *text, const char *what, struct err *e); /* of a hostfile */
int hosts_add_file(struct hosts *h, const char *path, struct err *e);
void hosts_free(struct hosts *h);

const char *host_address(const struct host *h); /* its name without the user */

#endif
