/* Names and makes the folders and files of logs (log_layout.h). */
#include "launcher/output/log_layout.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/dice.h"
#include "common/base/err.h"
#include "common/base/path.h"
#include "launcher/output/log_conf.h"

#define SUFFIX 6 /* bytes of XXXXXX */

static const char *const names[2][LOG_FILE_KINDS] = {{"out", "err", "error.json"},
                                                     {"stdout.log", "stderr.log", "error.json"}};

/* Plan the paths: absolute, because workers get paths below the root and may change their folder. */
int log_layout_plan(struct log_layout *l, const struct log_conf *c, const char *run_id, struct err *e)
{
    char here[1024] = "";
    *l = (struct log_layout){
        .torchrun = c->layout == LOG_LAYOUT_TORCHRUN, .is_private = c->dir_is_private, .attempt = -1};
    if (!c->dir)
        return 0;
    if (c->dir[0] != '/' && !getcwd(here, sizeof here))
        return err_set(e, ERR_OUTPUT, "--log-dir %s: the current folder: %s", c->dir, strerror(errno));
    const char *slash = here[0] ? "/" : "";
    if ((size_t)snprintf(l->root, sizeof l->root, "%s%s%s", here, slash, c->dir) + 3 * strlen(run_id) + 9 >=
        sizeof l->root)
        return err_set(e, ERR_OUTPUT, "--log-dir: the path is too long");
    size_t n = strlen(l->root);
    l->root[n++] = '/';
    for (const char *p = run_id; *p; p++) /* so that each job has a folder of its own */
        n += (size_t)snprintf(l->root + n, sizeof l->root - n, *p == '/' || *p == '%' ? "%%%02X" : "%c", *p);
    strcpy(l->root + n, l->torchrun ? "_XXXXXX" : "");
    return 0;
}

/* Fill in a random suffix, as mkdtemp(3) does, without making the folder. */
static void choose_suffix(char *out)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
    uint64_t random = dice_seed();
    for (int i = 0; i < SUFFIX; i++, random /= sizeof letters - 1)
        out[i] = letters[random % (sizeof letters - 1)];
}

int log_layout_choose(struct log_layout *l, const struct log_conf *c, const char *run_id, struct err *e)
{
    TRY(log_layout_plan(l, c, run_id, e));
    char *slash = strrchr(l->root, '/');
    if (l->root[0] && l->is_private)
        choose_suffix(slash - SUFFIX);
    if (l->root[0] && l->torchrun)
        choose_suffix(l->root + strlen(l->root) - SUFFIX);
    return 0;
}

static int make_private(const char *path, struct err *e)
{
    if (mkdir(path, 0700) < 0)
        return err_set(e, ERR_OUTPUT, "cannot make the log folder %s: %s", path, strerror(errno));
    return 0;
}

static int check_own(int fd, const char *path, struct err *e)
{
    struct stat st;
    if (fstat(fd, &st) == 0 && st.st_uid == geteuid())
        return 0;
    return err_set(e, ERR_OUTPUT, "the log folder %s belongs to another user", path);
}

int log_layout_make_root(const struct log_layout *l, struct err *e)
{
    struct log_layout parent = *l;
    *strrchr(parent.root, '/') = '\0';
    TRY(l->is_private ? make_private(parent.root, e) : path_make_dirs(parent.root, e));
    return make_private(l->root, e);
}

/* Open the root folder. One with a random name must not be a link. */
static int open_root(const struct log_layout *l)
{
    return l->torchrun ? open(l->root, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW) : path_open_dir(l->root);
}

int log_layout_open_root(const struct log_layout *l, struct err *e)
{
    if (!l->torchrun)
        TRY(path_make_dirs(l->root, e));
    int fd = open_root(l);
    if (fd < 0 && errno == ENOENT) { /* removed since it was made */
        TRY(log_layout_make_root(l, e));
        fd = open_root(l);
    }
    if (fd < 0 && errno == ELOOP)
        return err_set(e, ERR_OUTPUT,
                       "the log folder %s is a symbolic link of another user: remove it, or choose another --log-dir",
                       l->root);
    if (fd < 0)
        return err_set(e, ERR_OUTPUT, "cannot open the log folder %s: %s", l->root, strerror(errno));
    const int rc = l->is_private ? check_own(fd, l->root, e) : 0;
    if (rc < 0)
        close(fd);
    return rc < 0 ? rc : fd;
}

size_t log_layout_root_bytes(const struct log_layout *l)
{
    return strlen(l->root) + 1;
}

void log_layout_name_round(struct log_layout *l, uint64_t round, int restarts)
{
    if (l->torchrun) {
        l->attempt = restarts > l->attempt ? restarts : l->attempt + 1;
        snprintf(l->round, sizeof l->round, "%s/attempt_%d", l->root, l->attempt);
    } else {
        snprintf(l->round, sizeof l->round, "%s/round-%llu", l->root, (unsigned long long)round);
    }
}

/* path: below the root. */
static int make_below(const struct log_layout *l, int root_fd, const char *path, struct err *e)
{
    struct stat st;
    const char *name = path + log_layout_root_bytes(l);
    const int why = mkdirat(root_fd, name, 0777) < 0 ? errno : 0;
    if (why && (why != EEXIST || fstatat(root_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISDIR(st.st_mode)))
        return err_set(e, ERR_OUTPUT, "cannot make folder %s: %s", path, strerror(why));
    return 0;
}

int log_layout_make_round(const struct log_layout *l, int root_fd, int workers, struct err *e)
{
    char path[LOG_PATH_MAX];
    if (!l->root[0])
        return 0;
    TRY(make_below(l, root_fd, l->round, e));
    for (int i = 0; l->torchrun && i < workers; i++) {
        snprintf(path, sizeof path, "%s/%d", l->round, i);
        TRY(make_below(l, root_fd, path, e));
    }
    return 0;
}

char *log_layout_path(const struct log_layout *l, int local, int rank, enum log_file kind, char out[LOG_PATH_MAX])
{
    const char *name = names[l->torchrun][kind];
    if (l->torchrun)
        snprintf(out, LOG_PATH_MAX, "%s/%d/%s", l->round, local, name);
    else
        snprintf(out, LOG_PATH_MAX, "%s/rank-%d.%s", l->round, rank, name);
    return out;
}

char *log_layout_filtered(const struct log_layout *l, int group_rank, enum log_file kind, char out[LOG_PATH_MAX])
{
    const char *name = names[l->torchrun][kind];
    if (l->torchrun)
        snprintf(out, LOG_PATH_MAX, "%s/filtered_%s", l->round, name);
    else
        snprintf(out, LOG_PATH_MAX, "%s/filtered-%d.%s", l->round, group_rank, name);
    return out;
}
