/* Opens what faults need besides signals: links and clocks (chaos_means.h). */
#include "launcher/tools/chaos/chaos_means.h"

#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/err.h"
#include "launcher/tools/chaos/chaos_target.h"

#define PATH_BYTES 4096

/* --- links */

static struct ifreq request(const struct chaos_target *t)
{
    struct ifreq r = {0};
    snprintf(r.ifr_name, sizeof r.ifr_name, "%s", t->link);
    return r;
}

/* Open a socket in the network namespace of that path. */
static int socket_there(const char *path, struct err *e)
{
    const int here = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC), there = open(path, O_RDONLY | O_CLOEXEC);
    int fd = -1, rc = 0;
    if (here < 0 || there < 0 || setns(there, CLONE_NEWNET) < 0)
        rc = err_errno(e, errno, "link: the network namespace %s", path);
    else if ((fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)) < 0)
        rc = err_errno(e, errno, "link: a socket in the network namespace %s", path);
    if (here >= 0 && there >= 0)
        setns(here, CLONE_NEWNET);
    if (here >= 0)
        close(here);
    if (there >= 0)
        close(there);
    return rc < 0 ? rc : fd;
}

/* Check that the link has no address, like a bridge's port: then taking it down removes no route. */
static int check_link(const struct chaos_target *t, int fd, struct err *e)
{
    struct ifreq r = request(t);
    if (strlen(t->link) >= sizeof r.ifr_name)
        return err_set(e, ERR_USAGE, "link: '%s': expected fewer than %d letters", t->link, IFNAMSIZ);
    if (ioctl(fd, SIOCGIFFLAGS, &r) < 0)
        return err_errno(e, errno, "link: '%s'", t->link), ERR_USAGE;
    if (!(r.ifr_flags & IFF_UP))
        return err_set(e, ERR_USAGE, "link: '%s' is down: expected one that is up", t->link);
    if (ioctl(fd, SIOCGIFADDR, &r) == 0)
        return err_set(e, ERR_USAGE,
                       "link: '%s' has an address, and its routes would be lost: expected the other end of it, "
                       "as the port of a bridge",
                       t->link);
    return 0;
}

static int open_link(const struct chaos_target *t, int *ret, struct err *e)
{
    char path[PATH_BYTES];
    if (t->netns)
        snprintf(path, sizeof path, "%s%s", strchr(t->netns, '/') ? "" : "/run/netns/", t->netns);
    const int fd = t->netns ? socket_there(path, e) : socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return t->netns ? fd : err_errno(e, errno, "link: a socket");
    *ret = fd;
    return check_link(t, fd, e);
}

int chaos_link_set(const struct chaos_means *m, int node, bool up)
{
    struct ifreq r = request(&m->targets->v[node]);
    if (ioctl(m->link_fd[node], SIOCGIFFLAGS, &r) < 0)
        return -errno;
    r.ifr_flags = (short)(up ? r.ifr_flags | IFF_UP : r.ifr_flags & ~IFF_UP);
    return ioctl(m->link_fd[node], SIOCSIFFLAGS, &r) < 0 ? -errno : 0;
}

/* --- clocks */

static int open_clock(const char *file, _Atomic int64_t **ret, struct err *e)
{
    struct stat st;
    const int fd = open(file, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    int rc = 0;
    void *p = MAP_FAILED;
    if (fd < 0 || fstat(fd, &st) < 0)
        rc = err_errno(e, errno, "clock: %s", file);
    else if (!S_ISREG(st.st_mode) || (st.st_size != 0 && st.st_size != sizeof(int64_t)))
        rc = err_set(e, ERR_USAGE, "clock: %s: expected a new file, or one that a worker's clock made (8 bytes)", file);
    else if (ftruncate(fd, sizeof(int64_t)) < 0 ||
             (p = mmap(NULL, sizeof(int64_t), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)) == MAP_FAILED)
        rc = err_errno(e, errno, "clock: %s", file);
    if (fd >= 0)
        close(fd);
    if (rc == 0)
        *ret = p;
    return rc;
}

void chaos_clock_set(const struct chaos_means *m, int node, double ahead_s)
{
    atomic_store(m->clock_ns[node], (int64_t)(ahead_s * 1e9));
}

/* --- all of them */

static int check_folder(const char *folder, struct err *e)
{
    struct stat st;
    if (stat(folder, &st) < 0)
        return err_errno(e, errno, "folder: %s", folder), ERR_USAGE;
    return S_ISDIR(st.st_mode) ? 0 : err_set(e, ERR_USAGE, "folder: %s is no folder", folder);
}

int chaos_means_open(struct chaos_means *m, const struct chaos_targets *t, struct err *e)
{
    *m = (struct chaos_means){.targets = t};
    memset(m->link_fd, -1, sizeof m->link_fd);
    for (int i = 0; i < t->n; i++) {
        int rc = t->v[i].folder ? check_folder(t->v[i].folder, e) : 0;
        if (rc == 0 && t->v[i].link)
            rc = open_link(&t->v[i], &m->link_fd[i], e);
        if (rc == 0 && t->v[i].clock)
            rc = open_clock(t->v[i].clock, &m->clock_ns[i], e);
        if (rc < 0)
            return err_wrap(e, "TARGET %d", i), rc;
    }
    return 0;
}

void chaos_means_close(struct chaos_means *m)
{
    for (int i = 0; i < m->targets->n; i++) {
        if (m->link_fd[i] >= 0)
            close(m->link_fd[i]);
        if (m->clock_ns[i])
            munmap((void *)m->clock_ns[i], sizeof(int64_t));
    }
}
