/* Finds the user of a connection's other end (peer_uid.h): looks up the peer's socket by our four-tuple with the
 * ends exchanged. If a v6 listener accepts a v4 connection (::ffff:a.b.c.d), the peer's socket is a v4 one. */
#include "rendezvousd/gate/peer_uid.h"
#include "common/base/err.h"
#include "common/net/addr.h"
#include "rendezvousd/gate/peer_uid_proc.h"
#include <errno.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct end {
    uint8_t ip[ADDR_BYTES];
    in_port_t port; /* network order */
};

static int read_end(const struct sockaddr_storage *sa, struct end *ret)
{
    ret->port = htons((uint16_t)addr_port_of((const struct sockaddr *)sa));
    return addr_of((const struct sockaddr *)sa, ret->ip) ? 0 : -EAFNOSUPPORT;
}

static void put_address(const struct end *end, void *out)
{
    const bool v4 = addr_is_v4(end->ip);
    memcpy(out, end->ip + (v4 ? 12 : 0), v4 ? 4 : 16);
}

/* Open a netlink socket that waits a second at most for answers; -errno. */
static int open_netlink(int protocol)
{
    const struct timeval deadline = {.tv_sec = 1};
    const int nl = socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, protocol);
    if (nl < 0)
        return -errno;
    setsockopt(nl, SOL_SOCKET, SO_RCVTIMEO, &deadline, sizeof deadline);
    return nl;
}

union answer {
    struct nlmsghdr h;
    char bytes[4096];
};

/* Send the request q and read its answer: a message of type `wanted` with a body of at least `least` bytes. 0 or
 * -errno, which may be the kernel's answer. */
static int exchange(int nl, const struct nlmsghdr *q, uint16_t wanted, size_t least, union answer *a)
{
    if (send(nl, q, q->nlmsg_len, 0) < 0)
        return -errno;
    const ssize_t n = recv(nl, a, sizeof *a, 0);
    if (n < 0)
        return -errno;
    if (!NLMSG_OK(&a->h, (size_t)n) || a->h.nlmsg_seq != q->nlmsg_seq)
        return -EPROTO;
    if (a->h.nlmsg_type == NLMSG_ERROR && a->h.nlmsg_len >= NLMSG_LENGTH(sizeof(struct nlmsgerr))) {
        const struct nlmsgerr *err = NLMSG_DATA(&a->h);
        return err->error < 0 ? err->error : -EPROTO;
    }
    return a->h.nlmsg_type == wanted && a->h.nlmsg_len >= NLMSG_LENGTH(least) ? 0 : -EPROTO;
}

/* Ask where a packet to that address would go: 1: to this host. This covers all addresses of all interfaces, and
 * local routes (`ip route add local 10.8.0.0/16 dev lo`): a process here can send from each. 0: no; or -errno. */
static int is_routed_here(const struct end *peer)
{
    const bool v4 = addr_is_v4(peer->ip);
    struct {
        struct nlmsghdr h;
        struct rtmsg r;
        struct rtattr a;
        char ip[16];
    } q = {.h = {.nlmsg_type = RTM_GETROUTE, .nlmsg_flags = NLM_F_REQUEST, .nlmsg_seq = 1},
           .r = {.rtm_family = v4 ? AF_INET : AF_INET6, .rtm_dst_len = v4 ? 32 : 128},
           .a = {.rta_len = RTA_LENGTH(v4 ? 4 : 16), .rta_type = RTA_DST}};
    union answer a;
    q.h.nlmsg_len = NLMSG_LENGTH(sizeof q.r) + q.a.rta_len;
    put_address(peer, q.ip);
    const int nl = open_netlink(NETLINK_ROUTE);
    if (nl < 0)
        return nl;
    const int rc = exchange(nl, &q.h, RTM_NEWROUTE, sizeof q.r, &a);
    close(nl);
    if (rc == -ENETUNREACH || rc == -EHOSTUNREACH)
        return 0;
    return rc < 0 ? rc : ((const struct rtmsg *)NLMSG_DATA(&a.h))->rtm_type == RTN_LOCAL;
}

/* 1: both ends are on this host; 0: no; -errno: not known. */
static int is_local(const struct end *peer, const struct end *own)
{
    if (addr_is_loopback(peer->ip) || memcmp(peer->ip, own->ip, ADDR_BYTES) == 0)
        return 1;
    return is_routed_here(peer);
}

static int ask(int nl, const struct end *peer, const struct end *own, uid_t *ret)
{
    static uint32_t questions;
    struct {
        struct nlmsghdr h;
        struct inet_diag_req_v2 r;
    } q = {
        .h = {.nlmsg_len = sizeof q,
              .nlmsg_type = SOCK_DIAG_BY_FAMILY,
              .nlmsg_flags = NLM_F_REQUEST,
              .nlmsg_seq = ++questions},
        .r = {.sdiag_family = addr_is_v4(peer->ip) ? AF_INET : AF_INET6,
              .sdiag_protocol = IPPROTO_TCP,
              .idiag_states = ~0u},
    };
    q.r.id.idiag_sport = peer->port;
    q.r.id.idiag_dport = own->port;
    put_address(peer, q.r.id.idiag_src);
    put_address(own, q.r.id.idiag_dst);
    q.r.id.idiag_cookie[0] = q.r.id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
    union answer a;
    TRY(exchange(nl, &q.h, SOCK_DIAG_BY_FAMILY, sizeof(struct inet_diag_msg), &a));
    const struct inet_diag_msg *m = NLMSG_DATA(&a.h);
    /* A socket without an owner has no inode, and its uid reads as 0: it must not be taken for root's. */
    if (m->idiag_inode == 0)
        return -ENOENT;
    *ret = m->idiag_uid;
    return 0;
}

static int open_asker(int *asker, struct err *e)
{
    if (*asker >= 0)
        return 0;
    const int nl = open_netlink(NETLINK_SOCK_DIAG);
    if (nl < 0)
        return err_errno(e, -nl, "the user of a connection cannot be asked for");
    *asker = nl;
    return 0;
}

void peer_uid_close(int *asker)
{
    if (*asker >= 0)
        close(*asker);
    *asker = -1;
}

int peer_uid(int *asker, int fd, uid_t *ret, struct err *e)
{
    struct sockaddr_storage sa;
    struct end peer, own;
    socklen_t n = sizeof sa;
    if (getpeername(fd, (struct sockaddr *)&sa, &n) < 0)
        return err_errno(e, errno, "the peer of a connection is unknown");
    TRY(read_end(&sa, &peer));
    n = sizeof sa;
    if (getsockname(fd, (struct sockaddr *)&sa, &n) < 0)
        return err_errno(e, errno, "the own end of a connection is unknown");
    TRY(read_end(&sa, &own));
    const int local = is_local(&peer, &own);
    if (local < 0)
        return err_errno(e, -local, "the kernel does not tell whether the peer is on this host");
    if (!local)
        return err_set(e, -EREMOTE, "the peer is on another host");

    int rc = open_asker(asker, e);
    if (rc == -EPROTONOSUPPORT)
        rc = peer_uid_proc(peer.ip, ntohs(peer.port), own.ip, ntohs(own.port), ret);
    else if (rc < 0)
        return rc;
    else
        rc = ask(*asker, &peer, &own, ret);
    if (rc < 0 && rc != -ENOENT)
        peer_uid_close(asker); /* or its late answer would be matched to the next question */
    if (rc == -ENOENT)         /* the kernel keeps closed sockets for a while without a user */
        return err_set(e, rc, "the peer closed its connection before it could be asked whose it is");
    return rc < 0 ? err_errno(e, -rc, "the kernel does not tell whose a connection is") : 0;
}
