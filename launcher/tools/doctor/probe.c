/* Tries one connection between two hosts, with small and large packets (probe.h). */
#include "launcher/tools/doctor/probe.h"

#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/net/dial.h"
#include "common/net/resolve.h"

#define WORD 4
#define ANSWER_MS 8000 /* a listener's whole conversation */
#define TRIAL_MS 700
#define HEADERS_V4 40 /* IP and TCP headers without options, which TCP_MAXSEG does not count either */
#define HEADERS_V6 60

static const char *const names[] = {
#define X(id, name) [id] = name,
    PROBE_STATES(X)
#undef X
};

const char *probe_state_name(enum probe_state s)
{
    return names[s];
}

enum probe_state probe_state_of(const char *name)
{
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(names[i], name) == 0)
            return (enum probe_state)i;
    return PROBE_OTHER;
}

/* --- bytes, on descriptors that do not block */

static int send_all(int fd, const char *data, size_t n, int64_t deadline)
{
    while (n > 0) {
        const ssize_t sent = send(fd, data, n, MSG_NOSIGNAL);
        if (sent < 0 && errno != EAGAIN && errno != EINTR)
            return -errno;
        if (sent < 0)
            TRY(wait_fd(fd, POLLOUT, deadline, -1, NULL));
        data += sent > 0 ? sent : 0;
        n -= sent > 0 ? (size_t)sent : 0;
    }
    return 0;
}

/* out NULL: they are not kept. */
static int receive_all(int fd, char *out, size_t n, int64_t deadline)
{
    char scratch[16384];
    while (n > 0) {
        const ssize_t got = recv(fd, out ? out : scratch, out || n < sizeof scratch ? n : sizeof scratch, 0);
        if (got == 0)
            return -ECONNRESET;
        if (got < 0 && errno != EAGAIN && errno != EINTR)
            return -errno;
        if (got < 0)
            TRY(wait_fd(fd, POLLIN, deadline, -1, NULL));
        if (out && got > 0)
            out += got;
        n -= got > 0 ? (size_t)got : 0;
    }
    return 0;
}

static int send_bulk(int fd, int64_t deadline)
{
    static const char zeros[16384];
    for (size_t n = 0; n < PROBE_BULK; n += sizeof zeros)
        TRY(send_all(fd, zeros, sizeof zeros, deadline));
    return 0;
}

static int expect(int fd, const char *word, int64_t deadline)
{
    char text[WORD];
    TRY(receive_all(fd, text, WORD, deadline));
    return memcmp(text, word, WORD) == 0 ? 0 : -EPROTO;
}

/* --- the listener */

static void answer(int fd, const char *nonce)
{
    char got[AUTH_HEX];
    const int64_t deadline = clock_deadline(ANSWER_MS);
    if (receive_all(fd, got, AUTH_HEX, deadline) < 0 || memcmp(got, nonce, AUTH_HEX) != 0)
        return;
    if (send_all(fd, "here", WORD, deadline) < 0 || receive_all(fd, NULL, PROBE_BULK, deadline) < 0)
        return;
    if (send_all(fd, "full", WORD, deadline) == 0 && send_bulk(fd, deadline) == 0)
        receive_all(fd, got, 1, deadline); /* wait until the dialler closes */
}

static void serve(int listener, const char *nonce)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) {
        const int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0 && errno != EINTR && errno != ECONNABORTED)
            _exit(1);
        if (fd < 0)
            continue;
        answer(fd, nonce);
        close(fd);
    }
}

/* Listen on every address of both families; only IPv4 if there is no IPv6. */
static int open_listener(int *ret_port)
{
    struct sockaddr_in6 a = {.sin6_family = AF_INET6};
    struct sockaddr_in a4 = {.sin_family = AF_INET};
    socklen_t n = sizeof a, n4 = sizeof a4;
    int off = 0, fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off) == 0 &&
        bind(fd, (struct sockaddr *)&a, n) == 0 && listen(fd, 16) == 0 &&
        getsockname(fd, (struct sockaddr *)&a, &n) == 0) {
        *ret_port = ntohs(a.sin6_port);
        return fd;
    }
    if (fd >= 0)
        close(fd);
    fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && bind(fd, (struct sockaddr *)&a4, n4) == 0 && listen(fd, 16) == 0 &&
        getsockname(fd, (struct sockaddr *)&a4, &n4) == 0) {
        *ret_port = ntohs(a4.sin_port);
        return fd;
    }
    const int why = errno;
    if (fd >= 0)
        close(fd);
    return -why;
}

int probe_listen(const char *nonce, pid_t *ret_pid, int *ret_port, struct err *e)
{
    const int fd = open_listener(ret_port);
    if (fd < 0)
        return err_errno(e, -fd, "cannot listen");
    *ret_pid = fork();
    if (*ret_pid == 0)
        serve(fd, nonce);
    const int why = errno;
    close(fd);
    return *ret_pid < 0 ? err_errno(e, why, "cannot start a process") : 0;
}

/* --- the dialler */

static bool same(const struct sockaddr *a, const struct sockaddr_storage *b)
{
    const struct sockaddr_in *a4 = (const void *)a, *b4 = (const void *)b;
    const struct sockaddr_in6 *a6 = (const void *)a, *b6 = (const void *)b;
    if (!a || a->sa_family != b->ss_family)
        return false;
    return a->sa_family == AF_INET ? a4->sin_addr.s_addr == b4->sin_addr.s_addr
                                   : a->sa_family == AF_INET6 && memcmp(&a6->sin6_addr, &b6->sin6_addr, 16) == 0;
}

/* Find the interface that has the connection's own address. */
static void find_iface(int fd, struct probe *p)
{
    struct sockaddr_storage own;
    socklen_t n = sizeof own;
    struct ifaddrs *all;
    struct ifreq r = {0};
    if (getsockname(fd, (struct sockaddr *)&own, &n) < 0 || getifaddrs(&all) < 0)
        return;
    for (const struct ifaddrs *i = all; i && !p->iface[0]; i = i->ifa_next)
        if (same(i->ifa_addr, &own))
            snprintf(p->iface, sizeof p->iface, "%s", i->ifa_name);
    freeifaddrs(all);
    snprintf(r.ifr_name, sizeof r.ifr_name, "%.*s", IFNAMSIZ - 1, p->iface);
    if (p->iface[0] && ioctl(fd, SIOCGIFMTU, &r) == 0)
        p->mtu = r.ifr_mtu;
}

/* Close with a reset, which tells the listener of the end even if earlier data does not get through. */
static void hang_up(int fd)
{
    const struct linger now = {.l_onoff = 1};
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    close(fd);
}

static int exchange_bulk(int fd, int64_t deadline)
{
    TRY(send_bulk(fd, deadline));
    TRY(expect(fd, "full", deadline));
    return receive_all(fd, NULL, PROBE_BULK, deadline);
}

/* Repeat the whole conversation, with packets of at most this size. */
static bool passes(const struct sockaddr_storage *to, socklen_t n, const char *nonce, int packet)
{
    const int64_t deadline = clock_deadline(TRIAL_MS);
    const int segment = packet - (to->ss_family == AF_INET6 ? HEADERS_V6 : HEADERS_V4);
    const int fd = socket(to->ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    bool ok = fd >= 0 && setsockopt(fd, IPPROTO_TCP, TCP_MAXSEG, &segment, sizeof segment) == 0;
    ok = ok && (connect(fd, (const struct sockaddr *)to, n) == 0 || errno == EINPROGRESS);
    ok = ok && wait_fd(fd, POLLOUT, deadline, -1, NULL) == 0 && send_all(fd, nonce, AUTH_HEX, deadline) == 0 &&
         expect(fd, "here", deadline) == 0 && exchange_bulk(fd, deadline) == 0;
    if (fd >= 0)
        hang_up(fd);
    return ok;
}

static int find_passing(const struct sockaddr_storage *to, socklen_t n, const char *nonce, int mtu)
{
    static const int sizes[] = {8900, 4000, 1500, 1450, 1400, 1300, 1000, 600};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i] < mtu && passes(to, n, nonce, sizes[i]))
            return sizes[i];
    return 0;
}

static void converse(int fd, const char *nonce, struct probe *p)
{
    struct sockaddr_storage peer;
    socklen_t n = sizeof peer;
    int64_t deadline = clock_deadline(PROBE_CONNECT_MS);
    int rc = send_all(fd, nonce, AUTH_HEX, deadline);
    if (rc == 0)
        rc = expect(fd, "here", deadline);
    if (rc < 0) {
        p->state = PROBE_OTHER;
        snprintf(p->text, sizeof p->text, "%s", strerror(-rc));
        hang_up(fd);
        return;
    }
    rc = exchange_bulk(fd, clock_deadline(PROBE_BULK_MS));
    p->state = rc == 0 ? PROBE_OK : PROBE_STUCK;
    if (rc < 0)
        rc = getpeername(fd, (struct sockaddr *)&peer, &n);
    hang_up(fd); /* the listener has one conversation at a time */
    if (p->state == PROBE_STUCK && rc == 0)
        p->passes = find_passing(&peer, n, nonce, p->mtu > 0 ? p->mtu : 9000);
}

void probe_dial(const char *host, int port, const char *nonce, struct probe *ret)
{
    char text[16];
    struct addrinfo *found = NULL;
    struct err e = {0};
    int fd;
    *ret = (struct probe){.mtu = -1, .state = PROBE_UNRESOLVED};
    snprintf(text, sizeof text, "%d", port);
    int rc = resolve(host, text, clock_deadline(PROBE_CONNECT_MS), -1, &found, &e);
    if (rc == 0) {
        freeaddrinfo(found);
        ret->state = PROBE_CLOSED;
        rc = dial(host, text, clock_deadline(PROBE_CONNECT_MS), -1, &fd, &e);
    }
    if (rc < 0) {
        snprintf(ret->text, sizeof ret->text, "%.*s", (int)sizeof ret->text - 1, e.text[0] ? e.text : strerror(-rc));
        return;
    }
    find_iface(fd, ret);
    if (nonce)
        converse(fd, nonce, ret);
    else {
        ret->state = PROBE_OK;
        close(fd);
    }
}
