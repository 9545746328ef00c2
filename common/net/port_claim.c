#include "common/net/port_claim.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/base/err.h"
#include "common/base/file.h"

#define OF_ALL "/run/rendezvousd"

/* --- folders */

/* Of user uid, the i-th; false: there are no more. */
static bool name_folder(uid_t uid, int i, char out[PORT_CLAIM_FOLDER_MAX])
{
    if (i > 1)
        return false;
    if (i == 1)
        snprintf(out, PORT_CLAIM_FOLDER_MAX, "/tmp/rendezvousd-%u", (unsigned)uid);
    else if (uid == 0)
        strcpy(out, OF_ALL);
    else
        snprintf(out, PORT_CLAIM_FOLDER_MAX, "/run/user/%u/rendezvousd", (unsigned)uid);
    return true;
}

/* A descriptor; -errno; -EPERM: somebody else's, or open to others. *st: of it. */
static int open_folder(const char *path, struct stat *st)
{
    const int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    const int rc = fd < 0 || fstat(fd, st) < 0 ? -errno : st->st_mode & 022 ? -EPERM : 0;
    if (rc < 0 && fd >= 0)
        close(fd);
    return rc < 0 ? rc : fd;
}

/* --- the daemon */

static int write_claim(const char *folder, int port, bool make)
{
    char name[16], text[24];
    struct stat st;
    /* root's are there for all to see */
    const mode_t mode = geteuid() == 0 ? 0755 : 0700;
    const bool made = make && mkdir(folder, mode) == 0;
    const int dir = open_folder(folder, &st);
    if (dir < 0)
        return dir;
    if (made)
        fchmod(dir, mode); /* whatever the umask is */
    snprintf(name, sizeof name, "%d", port);
    int rc = st.st_uid == geteuid() ? 0 : -EPERM;
    const int fd =
        rc < 0 ? -1 : openat(dir, name, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0644);
    if (rc == 0)
        rc = fd < 0 ? -errno : file_write_all(fd, text, (size_t)snprintf(text, sizeof text, "%ld\n", (long)getpid()));
    if (rc == 0 && futimens(fd, NULL) < 0)
        rc = -errno;
    if (fd >= 0)
        close(fd);
    close(dir);
    return rc;
}

static bool is_supervised(const char *runtime_dir, char folder[PORT_CLAIM_FOLDER_MAX])
{
    const size_t n = runtime_dir ? strcspn(runtime_dir, ":") : 0;
    if (n == 0 || n >= PORT_CLAIM_FOLDER_MAX)
        return false;
    snprintf(folder, PORT_CLAIM_FOLDER_MAX, "%.*s", (int)n, runtime_dir);
    char own[PORT_CLAIM_FOLDER_MAX];
    name_folder(geteuid(), 0, own);
    return strcmp(folder, OF_ALL) == 0 || strcmp(folder, own) == 0;
}

int port_claim_make(struct port_claim *c, int port, const char *runtime_dir, struct err *e)
{
    *c = (struct port_claim){.port = port};
    c->stays = is_supervised(runtime_dir, c->folder);
    int rc = c->stays ? write_claim(c->folder, port, false) : -ENOENT;
    for (int i = 0; rc < 0 && !c->stays && name_folder(geteuid(), i, c->folder); i++)
        rc = write_claim(c->folder, port, true);
    if (rc == 0)
        return 0;
    err_errno(e, -rc, "the mark of port %d cannot be written to '%s'", port, c->folder);
    c->folder[0] = 0;
    return rc;
}

void port_claim_renew(const struct port_claim *c)
{
    if (c->folder[0])
        write_claim(c->folder, c->port, !c->stays);
}

void port_claim_drop(struct port_claim *c)
{
    char path[PORT_CLAIM_FOLDER_MAX + 16];
    if (!c->folder[0])
        return;
    snprintf(path, sizeof path, "%s/%d", c->folder, c->port);
    if (c->stays)
        port_claim_renew(c); /* it may be a restart */
    else
        unlink(path);
    c->folder[0] = 0;
}

/* --- crun */

/* A clock that was set by more than that ends the claims from before. */
static bool is_fresh(const struct stat *st)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    const int64_t age_s = (int64_t)now.tv_sec - st->st_mtim.tv_sec;
    return age_s > -PORT_CLAIM_MS / 1000 && age_s < PORT_CLAIM_MS / 1000;
}

/* any_owner: only root can make the folder, for whomever it likes. */
static bool is_in(const char *folder, uid_t uid, bool any_owner, int port)
{
    char name[16];
    struct stat of_dir, st;
    const int dir = open_folder(folder, &of_dir);
    if (dir < 0)
        return false;
    snprintf(name, sizeof name, "%d", port);
    const bool held = (any_owner || of_dir.st_uid == uid) && fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
                      S_ISREG(st.st_mode) && (st.st_uid == of_dir.st_uid || st.st_uid == 0) && is_fresh(&st);
    close(dir);
    return held;
}

bool port_claim_is_held(int port, char folder[PORT_CLAIM_FOLDER_MAX])
{
    const uid_t uids[] = {0, geteuid()};
    for (size_t u = 0; u < (uids[1] ? 2 : 1); u++)
        for (int i = 0; name_folder(uids[u], i, folder); i++)
            if (is_in(folder, uids[u], strcmp(folder, OF_ALL) == 0, port))
                return true;
    return false;
}
