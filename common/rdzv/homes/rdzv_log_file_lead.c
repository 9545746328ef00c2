/* What a leader does in a shared folder: decisions whose names are taken once, and the files it writes for
 * everybody. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/crc32c.h"
#include "common/base/err.h"
#include "common/rdzv/homes/framed_file.h"
#include "common/rdzv/homes/rdzv_log_file_internal.h"
#include "common/rdzv/wire/rdzv_wire.h"

/* --- the log */

static void decision_name(unsigned n, char out[32])
{
    snprintf(out, 32, "decision-%08u", n);
}

/* Read decision h->next, and on, to the end; out may be NULL. */
static int catch_up(struct file_home *h, struct buf *out, struct err *e)
{
    struct buf b = {0};
    char name[32], epoch[RDZV_EPOCH_MAX + 1];
    int rc = 0;
    while (rc == 0) {
        decision_name(h->next, name);
        rc = file_read(h, name, &b, e);
        if (rc < 0)
            break;
        size_t line = strcspn(b.data, "\n"), word = strcspn(b.data, " \n") + 1; /* "@reign epoch=..." */
        if (line > word && rdzv_field_find(b.data + word, line - word, "epoch", epoch, sizeof epoch) == 1)
            snprintf(h->epoch, sizeof h->epoch, "%s", epoch);
        rc = out ? buf_add(out, b.data, b.len) : 0;
        h->next++;
    }
    buf_free(&b);
    return rc == -ENOENT   ? 0
           : rc == -EAGAIN ? err_set(e, ERR_CORRUPT, "'%s/%s/%s' is damaged", h->dir, h->name, name)
                           : rc;
}

/* Take the next number for text. 1, or 0: somebody else has it. */
static int take_number(struct file_home *h, const struct buf *text, struct err *e)
{
    char name[32], draft[64];
    struct buf b = {0};
    decision_name(h->next, name);
    snprintf(draft, sizeof draft, "draft-%d-%lld", (int)getpid(), (long long)clock_ns());
    TRY(file_write(h, draft, O_EXCL, true, text->data, text->len, e));
    int rc = linkat(h->job_fd, draft, h->job_fd, name, 0) == 0 ? 1 : -errno;
    unlinkat(h->job_fd, draft, 0);
    if (rc == 1 && fsync(h->job_fd) < 0) /* the name, too, is on disk before it counts */
        rc = -errno;
    if (rc == -EEXIST) { /* by us, if a reply was lost on its way */
        rc = file_read(h, name, &b, e);
        rc = rc < 0 ? rc : b.len == text->len && memcmp(b.data, text->data, b.len) == 0;
        buf_free(&b);
    } else if (rc < 0)
        return err_errno(e, -rc, "link '%s/%s/%s'", h->dir, h->name, name);
    h->next += rc == 1;
    return rc;
}

/* --- the leader */

int file_identity(struct rdzv_home *base, char ret[RDZV_IDENTITY_MAX + 1], struct err *e)
{
    struct file_home *h = (struct file_home *)base;
    TRY(file_inside(h, e));
    snprintf(ret, RDZV_IDENTITY_MAX + 1, "folder");
    return 0;
}

int file_claim(struct rdzv_home *base, const char *seen, const char *epoch, const struct buf *record, struct err *e)
{
    struct file_home *h = (struct file_home *)base;
    struct buf pulse = {0};
    TRY(catch_up(h, NULL, e));
    if (strcmp(h->epoch, seen) != 0)
        return 0;
    int rc = take_number(h, record, e);
    if (rc != 1)
        return rc;
    snprintf(h->epoch, sizeof h->epoch, "%s", epoch);
    snprintf(h->own_epoch, sizeof h->own_epoch, "%s", epoch);
    rc = buf_printf(&pulse, "epoch=%s n=0", epoch);
    if (rc == 0)
        rc = file_write(h, "pulse", 0, false, pulse.data, pulse.len, e);
    buf_free(&pulse);
    return rc < 0 ? rc : 1;
}

int file_load(struct rdzv_home *base, struct buf *ret, struct err *e)
{
    struct file_home *h = (struct file_home *)base;
    const int rc = h->own_epoch[0] ? file_inside(h, e) : file_inside_if_there(h, e);
    if (rc != 0)
        return rc < 0 ? rc : 0;
    h->next = 1;
    h->active = clock_ms();
    return catch_up(h, ret, e);
}

static int write_slot(struct file_home *h, const struct rdzv_slot_write *s, struct err *e)
{
    char file[FILE_NAME_CAP], path[FILE_NAME_CAP + 8];
    framed_file_escape(s->node, file, sizeof file);
    snprintf(path, sizeof path, "slots/%s", file);
    return file_write(h, path, 0, false, s->text, s->len, e);
}

/* 1 while nobody has taken the next number. */
static int unchallenged(struct file_home *h)
{
    char name[32];
    struct stat st;
    decision_name(h->next, name);
    return fstatat(h->job_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0;
}

int file_append(struct rdzv_home *base, const struct rdzv_write *w, struct err *e)
{
    struct file_home *h = (struct file_home *)base;
    int rc = w->decision ? take_number(h, w->decision, e) : unchallenged(h);
    if (rc != 1)
        return rc;
    h->active = w->decision ? clock_ms() : h->active;
    for (size_t i = 0; i < w->slot_count; i++)
        TRY(write_slot(h, &w->slots[i], e));
    return 1;
}

int file_pulse(struct rdzv_home *base, const struct buf *record, struct err *e)
{
    struct file_home *h = (struct file_home *)base;
    if (!unchallenged(h))
        return 0;
    TRY(file_write(h, "pulse", 0, false, record->data, record->len, e));
    return 1;
}

/* A name made here makes NFS look at the folder anew. */
static void refresh_listing(struct file_home *h)
{
    char path[64];
    snprintf(path, sizeof path, "beats/.look-%d", (int)getpid());
    int fd = openat(h->job_fd, path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd >= 0)
        close(fd);
    unlinkat(h->job_fd, path, 0);
}

int file_beats(struct rdzv_home *base, bool all, rdzv_beat_visit *visit, void *arg, struct err *e)
{
    struct file_home *h = (struct file_home *)base;
    struct dirent *d;
    struct buf b = {0};
    uint32_t crc = 0;
    if (all)
        refresh_listing(h);
    int fd = openat(h->job_fd, "beats", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    if (!dir)
        return err_errno(e, errno, "'%s/%s/beats'", h->dir, h->name);
    while ((d = readdir(dir))) {
        char path[FILE_NAME_CAP], node[FILE_NAME_CAP];
        if (d->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "beats/%.280s", d->d_name);
        if (file_read(h, path, &b, NULL) < 0)
            continue; /* gone, or being written: it will be seen the next time */
        const char *asks = memchr(b.data, '\n', b.len);
        if (asks)
            crc = crc32c(crc, asks, b.len - (size_t)(asks - b.data));
        framed_file_unescape(d->d_name, node, sizeof node);
        visit(arg, node, b.data, b.len);
    }
    if (crc != h->calls_crc)
        h->active = clock_ms();
    h->calls_crc = crc;
    closedir(dir);
    buf_free(&b);
    return 0;
}

int file_wait_calls(struct rdzv_home *base, int64_t timeout_ms, struct err *e)
{
    struct file_home *h = (struct file_home *)base;
    int64_t ms = file_poll_ms(h);
    file_doze(h, ms < timeout_ms ? ms : timeout_ms);
    return 0;
}
