/* Looks up host names in a thread, within a deadline (resolve.h). */
#include "common/net/resolve.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/err.h"

/* A look-up, which the caller and the thread share; the last of them to release it frees it. */
struct lookup {
    atomic_int users;
    int done_fd;
    atomic_int rc; /* of getaddrinfo(); set after found */
    struct addrinfo *found;
    char *host, *port;
};

static const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};

static void let_go(struct lookup *l)
{
    if (atomic_fetch_sub(&l->users, 1) > 1)
        return;
    if (l->found)
        freeaddrinfo(l->found);
    if (l->done_fd >= 0)
        close(l->done_fd);
    free(l->host);
    free(l->port);
    free(l);
}

static void *look_up(void *arg)
{
    struct lookup *l = arg;
    uint64_t one = 1;
    l->rc = getaddrinfo(l->host, l->port, &hints, &l->found);
    ssize_t ignored = write(l->done_fd, &one, sizeof one);
    (void)ignored;
    let_go(l);
    return NULL;
}

static struct lookup *start(const char *host, const char *port)
{
    pthread_t thread;
    struct lookup *l = calloc(1, sizeof *l);
    if (!l)
        return NULL;
    l->users = 2;
    l->done_fd = eventfd(0, EFD_CLOEXEC);
    l->host = strdup(host);
    l->port = strdup(port);
    if (l->done_fd < 0 || !l->host || !l->port || pthread_create(&thread, NULL, look_up, l) != 0) {
        l->users = 1;
        let_go(l);
        return NULL;
    }
    pthread_detach(thread);
    return l;
}

static int lookup_error(int gai, const char *host, struct err *e)
{
    int code = gai == EAI_MEMORY ? -ENOMEM : gai == EAI_AGAIN ? -EAGAIN : -ENOENT;
    return err_set(e, code, "host '%s': %s", host, gai_strerror(gai));
}

int resolve_start(const char *host, const char *port, struct addrinfo **ret, struct lookup **ret_lookup, struct err *e)
{
    struct addrinfo numeric = hints;
    numeric.ai_flags |= AI_NUMERICHOST;
    int gai = getaddrinfo(host, port, &numeric, ret);
    if (gai == 0)
        return 1;
    if (gai != EAI_NONAME)
        return lookup_error(gai, host, e);
    *ret_lookup = start(host, port);
    return *ret_lookup ? 0 : err_set(e, -ENOMEM, "host '%s': out of memory or threads", host);
}

int resolve_fd(const struct lookup *l)
{
    return l->done_fd;
}

int resolve_take(struct lookup *l, const char *host, struct addrinfo **ret, struct err *e)
{
    int rc = l->rc == 0 ? 0 : lookup_error(l->rc, host, e);
    if (rc == 0) {
        *ret = l->found;
        l->found = NULL;
    }
    let_go(l);
    return rc;
}

void resolve_abandon(struct lookup *l)
{
    if (l)
        let_go(l);
}

int resolve(const char *host, const char *port, int64_t deadline, int abort_fd, struct addrinfo **ret, struct err *e)
{
    struct lookup *l = NULL;
    int rc = resolve_start(host, port, ret, &l, e);
    if (rc != 0)
        return rc < 0 ? rc : 0;
    rc = wait_fd(l->done_fd, POLLIN, deadline, abort_fd, e);
    if (rc == 0)
        return resolve_take(l, host, ret, e);
    resolve_abandon(l);
    return rc;
}

int wait_fd(int fd, short events, int64_t deadline, int abort_fd, struct err *e)
{
    struct pollfd p[2] = {{.fd = abort_fd, .events = POLLIN}, {.fd = fd, .events = events}};
    for (;;) {
        int n = poll(p, 2, clock_left(deadline));
        if (n < 0 && errno != EINTR)
            return err_errno(e, errno, "poll");
        if (n > 0 && p[0].revents)
            return err_set(e, -ECANCELED, "the store was aborted");
        if (n > 0)
            return 0;
        if (clock_left(deadline) == 0)
            return err_set(e, -ETIMEDOUT, "the deadline passed");
    }
}
