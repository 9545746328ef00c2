/* Takes the checkpoint folder for this run, or says whose it is. */
#include "worker/snapshot/output_folder.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/base/path.h"
#include "common/base/utf8.h"
#include "common/json/json.h"
#include "worker/ckpt/ckpt.h"
#include "worker/config/config.h"

enum { LOCK_PATIENCE_MS = 2000, LOCK_PAUSE_NS = 20 * 1000 * 1000 };

bool output_folder_lock_fails(int fd)
{
    const int64_t deadline = clock_deadline(LOCK_PATIENCE_MS);
    while (flock(fd, LOCK_EX | LOCK_NB) < 0) {
        if (errno != EWOULDBLOCK) /* a file system without locks is used without one */
            return false;
        if (clock_left(deadline) == 0)
            return true;
        nanosleep(&(struct timespec){.tv_nsec = LOCK_PAUSE_NS}, NULL);
    }
    return false;
}

/* Two live runs in one folder would remove each other's files. The lock goes with the process. */
static int lock_folder(const struct train_config *cfg, int *ret_fd, struct err *e)
{
    const char *dir = cfg->checkpoint_dir;
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return err_errno(e, errno, "open %s", dir);
    if (output_folder_lock_fails(fd)) {
        close(fd);
        return err_set(e, ERR_OUTPUT, "another run that is still alive%s writes its checkpoints to %s",
                       cfg->checkpoint_per_node ? ", or a node that shares this folder," : "", dir);
    }
    *ret_fd = fd;
    return 0;
}

/* Was this checkpoint written by the job that we are a restart of? */
static int is_own(const char *dir, int64_t step, const char *run_id, bool *ret, struct err *e)
{
    struct ckpt *c;
    const char *writer;
    TRY(ckpt_open(&c, dir, step, e));
    *ret = run_id && json_str(ckpt_meta(c), "run_id", &writer, NULL) == 0 && strcmp(writer, run_id) == 0;
    ckpt_close(c);
    return 0;
}

/* --resume PATH into a folder that holds checkpoints: only at its newest, whose successors are not there yet. */
static int check_branch(const char *path, const char *dir, int64_t newest, bool *ret, struct err *e)
{
    char from[PATH_MAX], to[PATH_MAX];
    int64_t step = -1;
    *ret = ckpt_locate(path, from, &step, NULL) == 0 && realpath(dir, to) && strcmp(from, to) == 0;
    if (*ret && step >= 0 && step != newest)
        return err_set(e, ERR_USAGE,
                       "--resume %s: %s holds a newer checkpoint, of step %lld; go on from an older one in another "
                       "--checkpoint-dir",
                       path, dir, (long long)newest);
    return 0;
}

int output_folder_set_aside(const struct train_config *cfg, int *lock_fd, struct err *e)
{
    const char *dir = cfg->checkpoint_dir;
    char to[PATH_MAX], when[32];
    struct timespec now;
    struct tm tm;
    clock_gettime(CLOCK_REALTIME, &now);
    strftime(when, sizeof when, "%Y%m%d-%H%M%S", localtime_r(&now.tv_sec, &tm));
    size_t n = strlen(dir);
    while (n > 1 && dir[n - 1] == '/')
        n--;
    snprintf(to, sizeof to, "%.*s.until-%s.%03ld", (int)n, dir, when, now.tv_nsec / 1000000);
    if (rename(dir, to) < 0)
        return err_set(e, ERR_OUTPUT, "rename %s to %s: %s", dir, to, strerror(errno));
    printable_line(stderr, "trainer: the checkpoints of an older run in %s are now in %s", dir, to);
    close(*lock_fd);
    *lock_fd = -1;
    TRY(path_make_writable(dir, e));
    return lock_folder(cfg, lock_fd, e);
}

int output_folder_take(const struct train_config *cfg, bool resume, const char *run_id, int *lock_fd, bool *aside,
                       struct err *e)
{
    const char *dir = cfg->checkpoint_dir;
    int64_t step = -1;
    bool own = false;
    TRY(path_make_writable(dir, e));
    TRY(lock_folder(cfg, lock_fd, e));
    if (train_config_resume(cfg) != RESUME_AUTO)
        TRY(ckpt_newest(dir, INT64_MAX, &step, e));
    if (step >= 0 && resume)
        TRY(is_own(dir, step, run_id, &own, e));
    if (step >= 0 && !own && train_config_resume(cfg) == RESUME_PATH)
        TRY(check_branch(cfg->resume, dir, step, &own, e));
    if (step < 0 || own)
        return 0;
    *aside = cfg->if_checkpoint == IF_CHECKPOINT_ASIDE;
    if (*aside)
        return 0;
    return err_set(e, ERR_USAGE,
                   "%s holds a checkpoint of step %lld: --resume auto goes on from it; a new run needs an empty folder",
                   dir, (long long)step);
}
