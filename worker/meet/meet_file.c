/* Meeting in a folder: hello-NUMBER (world and rank) is answered by welcome-NUMBER (host, address and port of rank 0's
 * store). Files appear whole (link of a complete file); nobody waits for events, which a network file system does not
 * tell. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/net/resolve.h"
#include "common/store/store.h"
#include "worker/comm/peers.h"
#include "worker/meet/meet_impl.h"

#define CAME "crun/came"
enum { PAUSE_MS = 20, PAUSE_MAX_MS = 250, NAME = 64, TEXT = 512, PATH = 4096, IDENTITY = 128 };

struct folder {
    char path[PATH];
    int fd;
};

/* One folder a run: its id may hold what no file name may. */
static int open_folder(struct folder *f, const char *dir, const char *run_id, struct err *e)
{
    char name[80];
    size_t n = 0;
    for (; run_id[n] && n < 60; n++)
        name[n] = strchr("/ \t\n", run_id[n]) ? '_' : run_id[n];
    name[n] = 0;
    if (snprintf(f->path, sizeof f->path, "%s/crun-meet-%s", dir, name) >= (int)sizeof f->path)
        return err_set(e, ERR_USAGE, "the path of the shared folder has more than %d bytes", PATH - 80);
    if (mkdir(dir, 0777) < 0 && errno != EEXIST)
        return err_errno(e, errno, "shared folder %s", dir);
    if (mkdir(f->path, 0700) < 0 && errno != EEXIST)
        return err_errno(e, errno, "shared folder %s", f->path);
    f->fd = open(f->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (f->fd < 0)
        return err_errno(e, errno, "shared folder %s", f->path);
    struct stat st;
    if (fstat(f->fd, &st) == 0 && st.st_uid == geteuid())
        return 0;
    close(f->fd);
    return err_set(e, -EPERM, "%s belongs to another user: choose another --run-id", f->path);
}

static int write_file(const struct folder *f, const char *name, const char *text, struct err *e)
{
    char part[NAME + 8];
    snprintf(part, sizeof part, ".part-%s", name);
    const size_t n = strlen(text);
    const int fd = openat(f->fd, part, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0)
        return err_errno(e, errno, "write %s/%s", f->path, name);
    const bool whole = write(fd, text, n) == (ssize_t)n && fsync(fd) == 0;
    const int why = errno;
    close(fd);
    if (!whole || renameat(f->fd, part, f->fd, name) < 0)
        return err_errno(e, whole ? errno : why, "write %s/%s", f->path, name);
    return 0;
}

/* False if there is no such file (yet). */
static bool read_file(const struct folder *f, const char *name, char text[TEXT])
{
    const int fd = openat(f->fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return false;
    const ssize_t n = read(fd, text, TEXT - 1);
    close(fd);
    text[n > 0 ? n : 0] = 0;
    return n > 0;
}

static void pause_for(int *ms, int64_t deadline)
{
    const int left = clock_left(deadline);
    wait_fd(-1, 0, clock_deadline(*ms < left ? *ms : left), -1, NULL);
    *ms = *ms * 2 < PAUSE_MAX_MS ? *ms * 2 : PAUSE_MAX_MS;
}

/* To each who asked since the last time, and to those of a world of another size not: they belong to an earlier run. */
static int answer_all(const struct folder *f, int world, const char *welcome, struct err *e)
{
    char text[TEXT], name[NAME];
    const int fd = openat(f->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC); /* of its own position; fresh on NFS */
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    int asked, rc = 0;
    if (!d)
        return err_errno(e, errno, "list %s", f->path);
    for (struct dirent *entry; rc == 0 && (entry = readdir(d));) {
        if (strncmp(entry->d_name, "hello-", 6) != 0 || strlen(entry->d_name) >= NAME - 4)
            continue;
        if (!read_file(f, entry->d_name, text) || sscanf(text, "%d", &asked) != 1 || asked != world)
            continue;
        snprintf(name, sizeof name, "welcome-%s", entry->d_name + 6);
        rc = write_file(f, name, welcome, e);
        unlinkat(f->fd, entry->d_name, 0);
    }
    closedir(d);
    return rc;
}

/* All have come: what is left was never taken up. */
static void clear_folder(const struct folder *f)
{
    const int fd = dup(f->fd);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    if (!d)
        return;
    rewinddir(d);
    for (struct dirent *entry; (entry = readdir(d));)
        if (strncmp(entry->d_name, "hello-", 6) == 0 || strncmp(entry->d_name, "welcome-", 8) == 0 ||
            strncmp(entry->d_name, ".part-", 6) == 0)
            unlinkat(f->fd, entry->d_name, 0);
    closedir(d);
    rmdir(f->path);
}

int meet_file_host(const char *dir, const char *run_id, int world, int port, struct store *own, int64_t deadline,
                   struct err *e)
{
    static const char *const all[] = {CAME "/all"};
    char welcome[TEXT], address[PEERS_ADDRESS_LEN], identity[IDENTITY];
    struct folder f;
    struct err waiting;
    TRY(open_folder(&f, dir, run_id, e));
    peers_default_address(address);
    peers_host_identity(identity, sizeof identity);
    snprintf(welcome, sizeof welcome, "%s %s %d\n", identity, address, port);
    int rc = 0, pause = PAUSE_MS;
    for (bool came = false; rc == 0 && !came;) {
        rc = answer_all(&f, world, welcome, e);
        if (rc < 0)
            break;
        came = store_wait(own, all, 1, pause, &waiting) == 0;
        if (!came && waiting.code != -ETIMEDOUT)
            rc = err_set(e, waiting.code, "%s", waiting.text);
        else if (!came && clock_left(deadline) == 0)
            rc = err_set(e, -ETIMEDOUT,
                         "not all of the other %d ranks came to %s: do all machines see this folder, and have they the "
                         "same run id?",
                         world - 1, f.path);
        pause = pause * 2 < PAUSE_MAX_MS ? pause * 2 : PAUSE_MAX_MS;
    }
    if (rc == 0)
        clear_folder(&f);
    close(f.fd);
    return rc;
}

static int draw(char name[NAME], const char *what, struct err *e)
{
    uint64_t drawn[2];
    if (getrandom(drawn, sizeof drawn, 0) != sizeof drawn)
        return err_errno(e, errno, "getrandom");
    snprintf(name, NAME, "%s-%016" PRIx64 "%016" PRIx64, what, drawn[0], drawn[1]);
    return 0;
}

int meet_file_ask(const char *dir, const char *run_id, int rank, int world, char *ret_host, size_t cap, int *ret_port,
                  int64_t deadline, struct err *e)
{
    char hello[NAME], welcome[NAME + 8], text[TEXT], identity[IDENTITY], mine[IDENTITY], address[PEERS_ADDRESS_LEN];
    struct folder f;
    int pause = PAUSE_MS;
    TRY(draw(hello, "hello", e));
    snprintf(welcome, sizeof welcome, "welcome-%s", hello + 6);
    snprintf(text, sizeof text, "%d %d\n", world, rank);
    TRY(open_folder(&f, dir, run_id, e));
    int rc = write_file(&f, hello, text, e);
    while (rc == 0 && !read_file(&f, welcome, text)) {
        if (clock_left(deadline) == 0)
            rc = err_set(e, -ETIMEDOUT,
                         "rank 0 did not come to %s: do all machines see this folder, and have they the same run id?",
                         f.path);
        else
            pause_for(&pause, deadline);
    }
    unlinkat(f.fd, rc == 0 ? welcome : hello, 0);
    close(f.fd);
    if (rc < 0)
        return rc;
    if (sscanf(text, "%127s %63s %d", identity, address, ret_port) != 3)
        return err_set(e, -EPROTO, "%s/%s is not what rank 0 writes", f.path, welcome);
    peers_host_identity(mine, sizeof mine);
    snprintf(ret_host, cap, "%s", strcmp(mine, identity) == 0 ? "127.0.0.1" : address);
    return 0;
}

int meet_file_came(struct store *s, int world, int64_t deadline, struct err *e)
{
    int64_t came;
    TRY(store_add(s, CAME, 1, &came, clock_left(deadline), e));
    return came == world - 1 ? store_set(s, CAME "/all", "", 0, clock_left(deadline), e) : 0;
}
