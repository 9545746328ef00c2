/* A job's home in a directory that all its nodes share (file:///DIR), made to work on NFS.
 *
 *   DIR/crun-RUN/             mode 0700, ours
 *     decision-00000001 ...   one decision each: written whole under another name, fsync(2), then link(2): a name is taken once, by one
 *     pulse                   renewed by the leader
 *     beats/NODE, slots/NODE  written by the node, and for it
 *
 * link() is the fence: two leaders cannot both take the next number. A reply lost on its way makes the kernel say EEXIST to the one who
 * did take it: reading back tells. Decisions stay until the job ends: nobody can mistake a gap for the end of the log.
 * The other files are written in place, with length and checksum in front, and read by open, read, close: that is what NFS keeps
 * coherent (close-to-open). Nothing relies on inotify, locks, times of files, or renaming over a file that others read; a file read while it is
 * being written fails its checksum and is read again. A folder's cached listing is refreshed by making a file in it.
 * Everybody polls: every 20 ms while something happens, backing off to 1 s. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/crc32c.h"
#include "common/err.h"
#include "common/framed_file.h"
#include "common/rdzv_log_home.h"
#include "common/rdzv_wire.h"
#include "common/resolve.h"

enum {
    POLL_FIRST_MS = 20,
    POLL_LAST_MS = 1000,
    NAME_CAP = 300,
};

struct file_home {
    struct rdzv_home base;
    char *dir;  /* of all jobs */
    char *name; /* of ours in it */
    int dir_fd, job_fd;
    ino_t job_inode;
    int wake_fd;
    char epoch[RDZV_EPOCH_MAX + 1]; /* newest seen */
    char own_epoch[RDZV_EPOCH_MAX + 1];
    unsigned next;                /* number of the next decision */
    struct buf pulse;             /* newest seen of the newest epoch */
    uint32_t slot_crc, calls_crc; /* of what was seen last */
    int64_t active;               /* when something last happened */
};

/* ---- small files ---------------------------------------------------------------------------------------------------- */

static int write_file(struct file_home *h, const char *path, int flags, bool sync, const char *text, size_t n,
                      struct err *e)
{
    int rc = framed_file_write(h->job_fd, path, flags, sync, text, n);
    return rc < 0 ? err_errno(e, -rc, "write '%s/%s/%s'", h->dir, h->name, path) : 0;
}

static int read_file(struct file_home *h, const char *path, struct buf *out, struct err *e)
{
    int rc = framed_file_read(h->job_fd, path, out);
    return rc < 0 ? err_errno(e, -rc, "read '%s/%s/%s'", h->dir, h->name, path) : 0;
}

/* ---- the folder ------------------------------------------------------------------------------------------------------- */

static int make_folder(int at, const char *name)
{
    return mkdirat(at, name, 0700) == 0 || errno == EEXIST ? 0 : -errno;
}

static int check_owner(struct file_home *h, struct err *e)
{
    struct stat st;
    if (fstat(h->job_fd, &st) < 0)
        return err_errno(e, errno, "'%s/%s'", h->dir, h->name);
    if (st.st_uid != geteuid())
        return err_set(e, ERR_REFUSED, "'%s/%s' belongs to uid %u, not to us (%u): another user's job has this run id",
                       h->dir, h->name, (unsigned)st.st_uid, (unsigned)geteuid());
    if (st.st_mode & 022)
        return err_set(e, ERR_REFUSED, "'%s/%s' may be written by others (mode %03o): expected 700", h->dir, h->name,
                       (unsigned)st.st_mode & 0777);
    h->job_inode = st.st_ino;
    return 0;
}

static void leave_folder(struct file_home *h)
{
    if (h->job_fd >= 0)
        close(h->job_fd);
    h->job_fd = -1;
}

static int enter_folder(struct file_home *h, struct err *e)
{
    if (h->dir_fd < 0)
        h->dir_fd = open(h->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (h->dir_fd < 0)
        return err_errno(e, errno, "the shared folder '%s'", h->dir);
    int rc = make_folder(h->dir_fd, h->name);
    if (rc == 0)
        h->job_fd = openat(h->dir_fd, h->name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (rc < 0 || h->job_fd < 0)
        return err_errno(e, rc < 0 ? -rc : errno, "the job's folder '%s/%s'", h->dir, h->name);
    rc = check_owner(h, e);
    if (rc == 0 && ((rc = make_folder(h->job_fd, "beats")) < 0 || (rc = make_folder(h->job_fd, "slots")) < 0))
        err_errno(e, -rc, "the job's folder '%s/%s'", h->dir, h->name);
    if (rc < 0)
        leave_folder(h);
    h->next = 1;
    h->epoch[0] = 0;
    return rc;
}

/* The folder we hold may have been cleared away by the last of an earlier job. */
static int inside(struct file_home *h, struct err *e)
{
    struct stat st;
    if (h->job_fd >= 0 && (fstatat(h->dir_fd, h->name, &st, AT_SYMLINK_NOFOLLOW) < 0 || st.st_ino != h->job_inode))
        leave_folder(h);
    return h->job_fd >= 0 ? 0 : enter_folder(h, e);
}

static int64_t file_now(struct rdzv_home *base)
{
    (void)base;
    return clock_ms();
}

static int64_t file_poll_ms(struct file_home *h)
{
    int64_t ms = (clock_ms() - h->active) / 10;
    return ms < POLL_FIRST_MS ? POLL_FIRST_MS : ms > POLL_LAST_MS ? POLL_LAST_MS : ms;
}

/* Sleep; 1 if interrupted. */
static int doze(struct file_home *h, int64_t ms)
{
    uint64_t n;
    struct pollfd p = {.fd = h->wake_fd, .events = POLLIN};
    if (poll(&p, 1, clock_left(clock_deadline(ms))) <= 0)
        return 0;
    ssize_t got = read(h->wake_fd, &n, sizeof n);
    (void)got;
    return 1;
}

static void note_activity(struct file_home *h, uint32_t *crc, const char *p, size_t n)
{
    uint32_t now = crc32c(0, p, n);
    if (now != *crc)
        h->active = clock_ms();
    *crc = now;
}

/* ---- every node ----------------------------------------------------------------------------------------------------- */

static unsigned long long epoch_number(const char *epoch)
{
    return strtoull(epoch, NULL, 10);
}

/* A pulse may come from a leader that does not know of its end yet: only the newest reign's counts. */
static int read_pulse(struct file_home *h, struct err *e)
{
    struct buf b = {0};
    char epoch[RDZV_EPOCH_MAX + 1] = "";
    int rc = read_file(h, "pulse", &b, e);
    if (rc == 0 && rdzv_field_find(b.data, b.len, "epoch", epoch, sizeof epoch) == 1 &&
        epoch_number(epoch) >= epoch_number(h->epoch)) {
        snprintf(h->epoch, sizeof h->epoch, "%s", epoch);
        buf_clear(&h->pulse);
        rc = buf_add(&h->pulse, b.data, b.len);
    }
    buf_free(&b);
    return rc == -ENOENT || rc == -EAGAIN ? 0 : rc;
}

static int file_exchange(struct rdzv_home *base, const char *node, const struct buf *beat, bool call,
                         struct rdzv_view *ret, struct err *e)
{
    struct file_home *h = (struct file_home *)base;
    char file[NAME_CAP], path[NAME_CAP + 8];
    framed_file_escape(node, file, sizeof file);
    TRY(inside(h, e));
    snprintf(path, sizeof path, "beats/%s", file);
    TRY(write_file(h, path, 0, false, beat->data, beat->len, e));
    if (call)
        h->active = clock_ms();
    TRY(read_pulse(h, e));
    snprintf(ret->epoch, sizeof ret->epoch, "%s", h->epoch);
    buf_clear(&ret->pulse);
    TRY(buf_add(&ret->pulse, h->pulse.data ? h->pulse.data : "", h->pulse.len));
    snprintf(path, sizeof path, "slots/%s", file);
    int rc = read_file(h, path, &ret->slot, e);
    if (rc == -ENOENT || rc == -EAGAIN)
        buf_clear(&ret->slot);
    else if (rc < 0)
        return rc;
    h->slot_crc = crc32c(0, ret->slot.data ? ret->slot.data : "", ret->slot.len);
    return 0;
}

static int file_wait_slot(struct rdzv_home *base, const char *node, int64_t timeout_ms, struct err *e)
{
    struct file_home *h = (struct file_home *)base;
    char file[NAME_CAP], path[NAME_CAP + 8];
    struct buf b = {0};
    int64_t until = clock_deadline(timeout_ms);
    uint32_t before = h->slot_crc;
    framed_file_escape(node, file, sizeof file);
    snprintf(path, sizeof path, "slots/%s", file);
    while (clock_left(until) > 0 && h->slot_crc == before) {
        int64_t ms = file_poll_ms(h);
        if (doze(h, ms < clock_left(until) ? ms : clock_left(until)))
            break;
        if (read_file(h, path, &b, NULL) == 0)
            note_activity(h, &h->slot_crc, b.data, b.len);
    }
    buf_free(&b);
    return 0;
}

/* The first address of a network that is up; loopback if there is none. */
static int file_address(struct rdzv_home *base, char *ret, size_t cap, struct err *e)
{
    struct ifaddrs *list = NULL;
    snprintf(ret, cap, "127.0.0.1");
    if (getifaddrs(&list) < 0)
        return 0;
    for (const struct ifaddrs *i = list; i; i = i->ifa_next)
        if (i->ifa_addr && i->ifa_addr->sa_family == AF_INET && (i->ifa_flags & IFF_UP) &&
            !(i->ifa_flags & IFF_LOOPBACK)) {
            getnameinfo(i->ifa_addr, sizeof(struct sockaddr_in), ret, (socklen_t)cap, NULL, 0, NI_NUMERICHOST);
            break;
        }
    freeifaddrs(list);
    return 0;
}

/* What is left of a job: under a name that nobody looks for. */
static void remove_job(struct file_home *h)
{
    char old[NAME_CAP + 32], path[NAME_CAP + 8];
    struct dirent *d;
    snprintf(old, sizeof old, "%s.old-%d-%lld", h->name, (int)getpid(), (long long)clock_ns());
    if (renameat(h->dir_fd, h->name, h->dir_fd, old) < 0)
        return;
    static const char *const folders[] = {"beats", "slots", "."};
    for (int i = 0; i < 3; i++) {
        int fd = openat(h->job_fd, folders[i], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        DIR *dir = fd < 0 ? NULL : fdopendir(fd);
        while (dir && (d = readdir(dir))) {
            snprintf(path, sizeof path, "%s/%s", folders[i], d->d_name);
            unlinkat(h->job_fd, path, 0);
        }
        if (dir)
            closedir(dir);
        if (i < 2)
            unlinkat(h->job_fd, folders[i], AT_REMOVEDIR);
    }
    leave_folder(h);
    unlinkat(h->dir_fd, old, AT_REMOVEDIR);
}

/* Only the last node can remove the folder of beats: nobody else writes there any more, and nobody new can. */
static void file_forget(struct rdzv_home *base, const char *node)
{
    struct file_home *h = (struct file_home *)base;
    char file[NAME_CAP], path[NAME_CAP + 8];
    if (h->job_fd < 0)
        return;
    framed_file_escape(node, file, sizeof file);
    snprintf(path, sizeof path, "beats/%s", file);
    unlinkat(h->job_fd, path, 0);
    snprintf(path, sizeof path, "slots/%s", file);
    unlinkat(h->job_fd, path, 0);
    if (unlinkat(h->job_fd, "beats", AT_REMOVEDIR) == 0)
        remove_job(h);
}

/* ---- the log -------------------------------------------------------------------------------------------------------- */

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
        rc = read_file(h, name, &b, e);
        if (rc < 0)
            break;
        size_t line = strcspn(b.data, "\n");
        if (line > 2 && rdzv_field_find(b.data + 2, line - 2, "epoch", epoch, sizeof epoch) == 1)
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
    TRY(write_file(h, draft, O_EXCL, true, text->data, text->len, e));
    int rc = linkat(h->job_fd, draft, h->job_fd, name, 0) == 0 ? 1 : -errno;
    unlinkat(h->job_fd, draft, 0);
    if (rc == -EEXIST) { /* by us, if a reply was lost on its way */
        rc = read_file(h, name, &b, e);
        rc = rc < 0 ? rc : b.len == text->len && memcmp(b.data, text->data, b.len) == 0;
        buf_free(&b);
    } else if (rc < 0)
        return err_errno(e, -rc, "link '%s/%s/%s'", h->dir, h->name, name);
    h->next += rc == 1;
    return rc;
}

/* ---- the leader ------------------------------------------------------------------------------------------------------- */

static int file_identity(struct rdzv_home *base, char ret[RDZV_IDENTITY_MAX + 1], struct err *e)
{
    struct file_home *h = (struct file_home *)base;
    TRY(inside(h, e));
    snprintf(ret, RDZV_IDENTITY_MAX + 1, "folder");
    return 0;
}

static int file_claim(struct rdzv_home *base, const char *seen, const char *epoch, const struct buf *record,
                      struct err *e)
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
    rc = rc ? rc : write_file(h, "pulse", 0, false, pulse.data, pulse.len, e);
    buf_free(&pulse);
    return rc < 0 ? rc : 1;
}

static int file_load(struct rdzv_home *base, struct buf *ret, struct err *e)
{
    struct file_home *h = (struct file_home *)base;
    TRY(inside(h, e));
    h->next = 1;
    h->active = clock_ms();
    return catch_up(h, ret, e);
}

static int write_slot(struct file_home *h, const struct rdzv_slot_write *s, struct err *e)
{
    char file[NAME_CAP], path[NAME_CAP + 8];
    framed_file_escape(s->node, file, sizeof file);
    snprintf(path, sizeof path, "slots/%s", file);
    return write_file(h, path, 0, false, s->text, s->len, e);
}

static int file_append(struct rdzv_home *base, const struct rdzv_write *w, struct err *e)
{
    struct file_home *h = (struct file_home *)base;
    int rc = take_number(h, w->decision, e);
    if (rc != 1)
        return rc;
    h->active = clock_ms();
    for (size_t i = 0; i < w->slot_count; i++)
        TRY(write_slot(h, &w->slots[i], e));
    return 1;
}

/* 1 while nobody has taken the next number. */
static int unchallenged(struct file_home *h)
{
    char name[32];
    struct stat st;
    decision_name(h->next, name);
    return fstatat(h->job_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0;
}

static int file_rewrite(struct rdzv_home *base, const struct rdzv_slot_write *slot, struct err *e)
{
    struct file_home *h = (struct file_home *)base;
    if (!unchallenged(h))
        return 0;
    TRY(write_slot(h, slot, e));
    return 1;
}

static int file_pulse(struct rdzv_home *base, const struct buf *record, struct err *e)
{
    struct file_home *h = (struct file_home *)base;
    if (!unchallenged(h))
        return 0;
    TRY(write_file(h, "pulse", 0, false, record->data, record->len, e));
    return 1;
}

/* A name made here makes NFS look at the folder anew. */
static void refresh_listing(struct file_home *h)
{
    char path[64];
    snprintf(path, sizeof path, "beats/.look-%d", (int)getpid());
    int fd = openat(h->job_fd, path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (fd >= 0)
        close(fd);
    unlinkat(h->job_fd, path, 0);
}

static int file_beats(struct rdzv_home *base, bool all, rdzv_beat_visit *visit, void *arg, struct err *e)
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
        char path[NAME_CAP], node[NAME_CAP];
        if (d->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "beats/%.280s", d->d_name);
        if (read_file(h, path, &b, NULL) < 0)
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

static int file_wait_calls(struct rdzv_home *base, int64_t timeout_ms, struct err *e)
{
    struct file_home *h = (struct file_home *)base;
    int64_t ms = file_poll_ms(h);
    doze(h, ms < timeout_ms ? ms : timeout_ms);
    return 0;
}

/* ---- the handle ------------------------------------------------------------------------------------------------------- */

static void file_interrupt(struct rdzv_home *base)
{
    struct file_home *h = (struct file_home *)base;
    uint64_t one = 1;
    ssize_t n = write(h->wake_fd, &one, sizeof one);
    (void)n;
}

static void file_close(struct rdzv_home *base)
{
    struct file_home *h = (struct file_home *)base;
    if (!h)
        return;
    leave_folder(h);
    if (h->dir_fd >= 0)
        close(h->dir_fd);
    if (h->wake_fd >= 0)
        close(h->wake_fd);
    buf_free(&h->pulse);
    free(h->dir);
    free(h->name);
    free(h);
}

static const struct rdzv_home_ops file_ops = {
    .name = "file",
    .now = file_now,
    .exchange = file_exchange,
    .wait_slot = file_wait_slot,
    .address = file_address,
    .forget = file_forget,
    .identity = file_identity,
    .claim = file_claim,
    .load = file_load,
    .append = file_append,
    .rewrite = file_rewrite,
    .pulse = file_pulse,
    .beats = file_beats,
    .wait_calls = file_wait_calls,
    .interrupt = file_interrupt,
    .close = file_close,
};

int rdzv_log_file_open(struct rdzv_home **ret, const char *url, const struct rdzv_home_options *o, struct err *e)
{
    const char *path = url + strlen("file://");
    char run[NAME_CAP];
    if (path[0] != '/')
        return err_set(e, -EINVAL, "'%.200s': expected file:///FOLDER with an absolute path", url);
    struct file_home *h = calloc(1, sizeof *h);
    if (!h)
        return err_set(e, -ENOMEM, "no memory for a shared folder");
    h->base.ops = &file_ops;
    h->dir_fd = h->job_fd = -1;
    h->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    framed_file_escape(o->run_id, run, sizeof run - 64);
    h->dir = strdup(path);
    if (h->wake_fd < 0 || !h->dir || asprintf(&h->name, "crun-%s", run) < 0) {
        file_close(&h->base);
        return err_set(e, -ENOMEM, "no memory or file descriptor for a shared folder");
    }
    *ret = &h->base;
    return 0;
}
