/* What is being tried: a file in the cache's folder, locked by who tries: each opened cuDNN has its own, also where
 * several share a process, or processes of several hosts (containers) share the folder and a number. A file that holds
 * a record and that nobody locks was left by a process that a trial took with it: its engine is barred. A file gets the
 * name that is swept only once it is locked, so nobody takes a new one for one that was left.
 *
 * flock(2): the kernel lets go of it however the process ends. A process that somebody else killed in just that
 * millisecond bars an engine for nothing; the file of its graph says why, and may be removed. */
#include "worker/device/cuda/dnn/dnn_impl.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "common/base/err.h"
#include "common/base/log.h"
#include "common/base/path.h"

enum { RECORD_BYTES = 8192, PATH_BYTES = 1200 };
#define PREFIX "trial-"

/* Where this fails, the process goes on without: nothing else depends on it. */
static void open_trial(struct cudnn *d)
{
    char dir[1024], mark[CUDNN_MARK], fresh[PATH_BYTES], path[PATH_BYTES];
    if (d->trial != -1 || d->unwritable || !cudnn_cache_folder(d, dir, sizeof dir) || path_make_dirs(dir, NULL) < 0)
        return;
    cudnn_mark(mark);
    snprintf(fresh, sizeof fresh, "%s/new-%s", dir, mark);
    snprintf(path, sizeof path, "%s/" PREFIX "%s", dir, mark);
    const int fd = open(fresh, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0)
        return;
    d->trial_path = strdup(path);
    if (!d->trial_path || flock(fd, LOCK_EX | LOCK_NB) < 0 || rename(fresh, path) < 0) {
        free(d->trial_path);
        d->trial_path = NULL;
        unlink(fresh);
        close(fd);
        return;
    }
    d->trial = fd;
}

void cudnn_trial_begin(struct cudnn *d, const struct cudnn_plan *p)
{
    open_trial(d);
    if (d->trial < 0)
        return;
    cJSON *o = cudnn_record_make(p);
    char *text = cJSON_PrintUnformatted(o);
    cJSON_Delete(o);
    if (text && pwrite(d->trial, text, strlen(text), 0) != (ssize_t)strlen(text))
        (void)!ftruncate(d->trial, 0); /* half a record names nobody */
    free(text);
}

void cudnn_trial_end(struct cudnn *d)
{
    if (d->trial >= 0)
        (void)!ftruncate(d->trial, 0);
}

void cudnn_trials_close(struct cudnn *d)
{
    if (d->trial >= 0) {
        unlink(d->trial_path);
        close(d->trial);
    }
    free(d->trial_path);
}

/* text: what a process that is gone was trying. */
static void bar(struct cudnn *d, const char *text)
{
    struct err e = {0};
    cJSON *o = cJSON_Parse(text);
    if (!o || cudnn_record_bar(d, o, "the process that tried it ended meanwhile", &e) < 0)
        log_warn("cudnn", "a trial that did not end cannot be read: %s", o ? e.text : "no JSON");
    cJSON_Delete(o);
}

static void sweep_one(struct cudnn *d, const char *path)
{
    char text[RECORD_BYTES];
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
        const ssize_t n = pread(fd, text, sizeof text - 1, 0);
        text[n > 0 ? n : 0] = '\0';
        if (n > 0)
            bar(d, text);
        unlink(path);
    }
    close(fd);
}

void cudnn_trials_sweep(struct cudnn *d)
{
    char dir[1024], path[PATH_BYTES + 256];
    DIR *f = cudnn_cache_folder(d, dir, sizeof dir) ? opendir(dir) : NULL;
    for (struct dirent *x; f && (x = readdir(f));) {
        if (strncmp(x->d_name, PREFIX, strlen(PREFIX)) != 0)
            continue;
        snprintf(path, sizeof path, "%s/%s", dir, x->d_name);
        sweep_one(d, path);
    }
    if (f)
        closedir(f);
}
