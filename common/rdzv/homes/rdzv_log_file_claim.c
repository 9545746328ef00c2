/* The claim in a shared folder: one file, the token, whose name is the state of the claim.
 *
 *   claim/term-EPOCH.N           who leads, renewed N times; term-0.0: nobody ever did
 *   claim/term-EPOCH.N.rHOLD     released
 *   claim/leader-EPOCH           what else the claim says (rdzv_claim.h), written before the token bears that epoch
 *
 * Claim, renewal and release are each one rename(2) of the token: it happens only to a token of that very name, and no
 * name comes twice. A leader that was overtaken, and a node that claims what was renewed meanwhile, rename a file that
 * is not there. A reply lost on its way makes the kernel say ENOENT to the one whose rename happened: then the new name
 * is there. Whoever reads lists the folder, whose cached listing NFS refreshes when a file is made in it; one that is
 * old shows a name that nobody can take any more. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/err.h"
#include "common/rdzv/homes/rdzv_log_file_internal.h"

#define TOKEN FILE_CLAIM "/term-"
#define FIRST TOKEN "0.0"

static void token_name(const struct rdzv_claim *c, char out[FILE_NAME_CAP])
{
    const int n = snprintf(out, FILE_NAME_CAP, TOKEN "%s.%" PRIu64, c->epoch[0] ? c->epoch : "0", c->n);
    if (c->released)
        snprintf(out + n, FILE_NAME_CAP - (size_t)n, ".%c%" PRId64, c->held ? 'h' : 'r', c->hold_ms);
}

static void leader_name(const char *epoch, char out[FILE_NAME_CAP])
{
    snprintf(out, FILE_NAME_CAP, FILE_CLAIM "/leader-%s", epoch);
}

static bool parse_token(const char *file, struct rdzv_claim *ret)
{
    long long hold = 0;
    char r = 0;
    int end = 0;
    *ret = (struct rdzv_claim){0};
    if (sscanf(file, "term-%47[^.].%" SCNu64 "%n", ret->epoch, &ret->n, &end) < 2)
        return false;
    ret->released = sscanf(file + end, ".%c%lld", &r, &hold) == 2 && (r == 'r' || r == 'h');
    ret->held = r == 'h';
    ret->hold_ms = hold;
    if (strcmp(ret->epoch, "0") == 0)
        ret->epoch[0] = 0;
    return true;
}

int file_token_make(int job_fd)
{
    const int fd = openat(job_fd, FIRST, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    return fd < 0 ? -errno : close(fd) < 0 ? -errno : 0;
}

static bool is_there(const struct file_home *h, const char *path)
{
    struct stat st;
    return fstatat(h->job_fd, path, &st, AT_SYMLINK_NOFOLLOW) == 0;
}

/* A name made here makes NFS look at the folder anew. */
static void refresh_listing(const struct file_home *h)
{
    char path[64];
    snprintf(path, sizeof path, FILE_CLAIM "/.look-%d", (int)getpid());
    const int fd = openat(h->job_fd, path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd >= 0)
        close(fd);
    unlinkat(h->job_fd, path, 0);
}

static bool is_newer(const struct rdzv_claim *a, const struct rdzv_claim *b)
{
    const uint64_t x = rdzv_epoch_number(a->epoch), y = rdzv_epoch_number(b->epoch);
    return x != y ? x > y : a->n != b->n ? a->n > b->n : a->released;
}

/* The newest name that the listing shows: while it is read, the token may be renamed. 0: none. */
static int find_token(const struct file_home *h, struct rdzv_claim *ret, struct err *e)
{
    struct rdzv_claim c;
    int found = 0;
    refresh_listing(h);
    const int fd = openat(h->job_fd, FILE_CLAIM, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    if (!dir)
        return err_errno(e, errno, "'%s/%s/" FILE_CLAIM "'", h->dir, h->name);
    for (const struct dirent *d; (d = readdir(dir));)
        if (parse_token(d->d_name, &c) && (!found++ || is_newer(&c, ret)))
            *ret = c;
    closedir(dir);
    return found > 0;
}

int file_look(struct rdzv_home *base, struct rdzv_claim *ret, struct err *e)
{
    struct file_home *h = (struct file_home *)base;
    struct rdzv_claim token = {0};
    struct buf b = {0};
    char path[FILE_NAME_CAP];
    int rc = file_inside(h, false, e);
    if (rc != 0)
        return rc < 0 ? rc : 0;
    TRY(rc = find_token(h, &token, e));
    if (rc == 0)
        return err_set(e, -EAGAIN, "the claim in '%s/%s' is being changed", h->dir, h->name);
    if (!token.epoch[0])
        return 0;
    leader_name(token.epoch, path);
    rc = file_read(h, path, &b, e);
    rc = rc ? rc : rdzv_claim_decode(b.data, b.len, ret, e);
    buf_free(&b);
    ret->n = token.n;
    ret->released = token.released;
    ret->hold_ms = token.hold_ms;
    ret->held = token.held;
    return rc < 0 ? rc : 1;
}

/* 1, or 0: the token had another name. */
static int move(struct file_home *h, const struct rdzv_claim *from, const struct rdzv_claim *to, struct err *e)
{
    char a[FILE_NAME_CAP], b[FILE_NAME_CAP];
    token_name(from, a);
    token_name(to, b);
    if (renameat(h->job_fd, a, h->job_fd, b) == 0)
        return 1;
    if (errno == ENOENT)
        return is_there(h, b);
    return err_errno(e, errno, "rename '%s/%s/%s'", h->dir, h->name, a);
}

int file_token_take(struct file_home *h, const struct rdzv_claim *seen, const struct rdzv_claim *own, struct err *e)
{
    struct buf text = {0};
    char path[FILE_NAME_CAP];
    int rc = rdzv_claim_encode(own, &text);
    leader_name(own->epoch, path);
    rc = rc < 0 ? err_set(e, rc, "no memory for a claim") : file_write(h, path, 0, true, text.data, text.len, e);
    buf_free(&text);
    rc = rc ? rc : move(h, seen, own, e);
    if (rc == 0)
        unlinkat(h->job_fd, path, 0);
    if (rc != 1 || !seen->epoch[0])
        return rc;
    leader_name(seen->epoch, path);
    unlinkat(h->job_fd, path, 0);
    return 1;
}

/* An earlier renewal may have happened though its answer was lost. */
int file_token_renew(struct file_home *h, struct rdzv_claim *own, struct err *e)
{
    struct rdzv_claim now = *own, next = *own, found;
    int rc;
    now.released = false;
    next.n++;
    TRY(rc = move(h, &now, &next, e));
    if (rc == 0) {
        TRY(rc = find_token(h, &found, e));
        if (rc == 0 || strcmp(found.epoch, own->epoch) != 0 || found.released)
            return 0;
        now.n = found.n;
        next.n = found.n + 1;
        TRY(rc = move(h, &now, &next, e));
    }
    own->n = next.n;
    return rc;
}
