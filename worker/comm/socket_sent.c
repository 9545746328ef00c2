/* Counts the bytes of a socket that the other side has acknowledged. */
#include "worker/comm/socket_sent.h"

#include <errno.h>
#include <linux/tcp.h> /* glibc's own struct tcp_info ends before the counters */
#include <netinet/in.h>
#include <stddef.h>
#include <sys/socket.h>

int64_t socket_sent(int fd)
{
    struct tcp_info i = {0};
    socklen_t n = sizeof i;
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &i, &n) < 0)
        return -errno;
    return n >= offsetof(struct tcp_info, tcpi_bytes_retrans) + sizeof i.tcpi_bytes_retrans
               ? (int64_t)(i.tcpi_bytes_sent - i.tcpi_bytes_retrans + i.tcpi_notsent_bytes)
               : -ENOSYS;
}
