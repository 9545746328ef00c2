/* Marks on TCP ports: see port_mark.h. sock_diag(7) finds them. */
#include "common/net/port_mark.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#define MARK_NET 0x7f4d0000u /* 127.77.0.0/16 */
#define MARK_MASK 0xffff0000u

/* --- setting */

static int bound_socket(const struct sockaddr_in *at)
{
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
    if (fd < 0)
        return -errno;
    if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) < 0 || /* as the port's own listener does */
        bind(fd, (const struct sockaddr *)at, sizeof *at) < 0) {
        const int rc = -errno;
        close(fd);
        return rc;
    }
    return fd;
}

/* Connect a socket to a listener of this process. Both ends stay open; no variable needs to hold them. */
static int connect_to_itself(int fd, int listener, const struct sockaddr_in *at)
{
    if (listen(listener, 1) < 0 || connect(fd, (const struct sockaddr *)at, sizeof *at) < 0 ||
        accept4(listener, NULL, NULL, SOCK_CLOEXEC) < 0)
        return -errno;
    return 0;
}

int port_mark(int port)
{
    /* Random addresses, because the kernel may still hold those of the mark before; 0 and 255 as last byte are
     * avoided. */
    uint8_t r[3] = {0};
    if (getrandom(r, sizeof r, GRND_NONBLOCK) < 0)
        r[0] = (uint8_t)getpid();
    const uint32_t one = MARK_NET | (uint32_t)r[0] << 8 | (1 + r[1] % 127u), two = one + 1 + r[2] % 127u;
    const struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr = {htonl(one)}},
                             b = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr = {htonl(two)}};
    const int listener = bound_socket(&a);
    if (listener < 0)
        return listener;
    const int fd = bound_socket(&b);
    const int rc = fd < 0 ? fd : connect_to_itself(fd, listener, &a);
    close(listener);
    if (rc < 0 && fd >= 0)
        close(fd);
    return rc;
}

/* --- looking */

static bool is_mark(const struct inet_diag_msg *m)
{
    return (ntohl(m->id.idiag_src[0]) & MARK_MASK) == MARK_NET && (ntohl(m->id.idiag_dst[0]) & MARK_MASK) == MARK_NET;
}

/* Search one reply of the kernel. 1: it contains a mark; 0: it does not, more replies may come; -1: it does not, and
 * it was the last. */
static int look_at(const char *reply, size_t n)
{
    for (const struct nlmsghdr *h = (const struct nlmsghdr *)(const void *)reply; NLMSG_OK(h, n);
         h = NLMSG_NEXT(h, n)) {
        if (h->nlmsg_type != SOCK_DIAG_BY_FAMILY)
            return -1; /* NLMSG_DONE, NLMSG_ERROR */
        if (h->nlmsg_len >= NLMSG_LENGTH(sizeof(struct inet_diag_msg)) && is_mark(NLMSG_DATA(h)))
            return 1;
    }
    return 0;
}

bool port_is_marked(int port)
{
    struct {
        struct nlmsghdr head;
        struct inet_diag_req_v2 what;
    } ask = {
        .head = {.nlmsg_len = sizeof ask, .nlmsg_type = SOCK_DIAG_BY_FAMILY, .nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP},
        .what = {.sdiag_family = AF_INET,
                 .sdiag_protocol = IPPROTO_TCP,
                 .idiag_states = ~(1u << TCP_LISTEN),
                 .id = {.idiag_sport = htons((uint16_t)port)}}};
    const int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
    if (fd < 0)
        return false;
    _Alignas(struct nlmsghdr) char reply[16384];
    int found = send(fd, &ask, sizeof ask, 0) == (ssize_t)sizeof ask ? 0 : -1;
    while (found == 0) { /* a reply comes in pieces; the kernel makes the next one when this one has been read */
        const ssize_t n = recv(fd, reply, sizeof reply, MSG_DONTWAIT);
        found = n <= 0 ? -1 : look_at(reply, (size_t)n);
    }
    close(fd);
    return found > 0;
}
