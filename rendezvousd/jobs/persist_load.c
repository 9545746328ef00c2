/* The state directory: reading every log of it, once. See persist.h. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/array.h"
#include "common/base/err.h"
#include "common/base/file.h"
#include "common/base/log.h"
#include "rendezvousd/jobs/persist_impl.h"

#define MODULE "persist"

static int read_file(int dir_fd, const char *name, struct buf *out, struct err *e)
{
    struct stat st;
    int fd = openat(dir_fd, name, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0) {
        int rc = errno;
        if (fd >= 0)
            close(fd);
        return err_errno(e, rc, "it cannot be opened");
    }
    int rc = 0;
    if (st.st_size > (off_t)PERSIST_FILE_MAX)
        rc = err_set(e, -EFBIG, "it has %lld bytes, more than %zu", (long long)st.st_size, PERSIST_FILE_MAX);
    if (rc == 0 && (rc = file_read_all(fd, out)) < 0)
        rc = err_errno(e, -rc, "it cannot be read");
    close(fd);
    return rc;
}

/* What was read of it is forgotten; the file stays for whoever wants to look at it. */
static int set_aside(struct persist *p, const char *name, const struct err *why, struct err *e)
{
    char aside[PERSIST_ID_MAX + 16];
    snprintf(aside, sizeof aside, "%s.damaged", name);
    if (renameat(p->jobs_fd, name, p->jobs_fd, aside) < 0 || fsync(p->jobs_fd) < 0)
        return err_errno(e, errno, "it is damaged, and cannot be renamed to '%s'", aside);
    p->damaged++;
    log_error(MODULE,
              "job log 'jobs/%s' of the state directory is damaged: %s; it is set aside as '%s', its job is forgotten",
              name, why->text, aside);
    return 0;
}

static int load_log(struct persist *p, const char *id, const char *name, const struct persist_reader *r, struct err *e)
{
    struct buf b = {.max = PERSIST_FILE_MAX + 1};
    struct err damage = {0};
    struct persist_log *l;
    void *arg;
    size_t good;
    int rc = read_file(p->jobs_fd, name, &b, e);
    if (rc == 0)
        rc = persist_add_log_(p, id, &l, e);
    if (rc < 0) {
        buf_free(&b);
        return rc;
    }
    rc = r->begin(r->arg, l, &arg, e);
    if (rc < 0) {
        persist_log_close(l);
        buf_free(&b);
        return rc;
    }
    rc = persist_parse(b.data ? b.data : "", b.len, r->record, arg, &good, &damage);
    if (rc == 0 && good < b.len)
        log_warn(MODULE, "'%s' ends within a record: its last %zu bytes are void", name, b.len - good);
    buf_free(&b);
    if (rc == 0)
        return r->end(arg, e);
    r->drop(arg);
    persist_log_close(l);
    return rc == -ENOMEM ? err_set(e, rc, "%s", damage.text) : set_aside(p, name, &damage, e);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* ret: malloc'ed names without ".log", sorted. What a rewrite has left unfinished is removed. */
static int list_logs(struct persist *p, char ***ret, size_t *ret_n, struct err *e)
{
    int fd = dup(p->jobs_fd);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    if (!d)
        return err_errno(e, errno, "the state directory cannot be listed");
    rewinddir(d);
    char **v = NULL;
    size_t n = 0, cap = 0;
    int rc = 0;
    for (struct dirent *f; rc == 0 && (f = readdir(d));) {
        size_t len = strlen(f->d_name);
        if (len > 4 && strcmp(f->d_name + len - 4, ".new") == 0)
            unlinkat(p->jobs_fd, f->d_name, 0);
        if (len <= 4 || strcmp(f->d_name + len - 4, ".log") != 0)
            continue;
        if (ARRAY_RESERVE(v, cap, n + 1) < 0 || !(v[n] = strndup(f->d_name, len - 4)))
            rc = err_set(e, -ENOMEM, "no memory for the names of jobs");
        else
            n++;
    }
    closedir(d);
    if (n)
        qsort(v, n, sizeof *v, by_name);
    *ret = v;
    *ret_n = n;
    return rc;
}

int persist_load(struct persist *p, const struct persist_reader *r, struct err *e)
{
    char **ids = NULL;
    size_t n = 0;
    int rc = list_logs(p, &ids, &n, e);
    for (size_t i = 0; i < n; i++) {
        char name[PERSIST_ID_MAX + 8];
        if (rc == 0 && persist_good_id_(ids[i])) {
            snprintf(name, sizeof name, "%s.log", ids[i]);
            rc = load_log(p, ids[i], name, r, e);
            if (rc < 0)
                err_wrap(e, "job log 'jobs/%s' of the state directory", name);
        }
        free(ids[i]);
    }
    free(ids);
    persist_close_fds_(p); /* the writer has them */
    return rc;
}
