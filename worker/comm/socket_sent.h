#ifndef CRUN_WORKER_SOCKET_SENT_H
#define CRUN_WORKER_SOCKET_SENT_H

#include <stdint.h>

/* Bytes of data that this end has written to a TCP connection so far, those that the kernel still has to send
 * included. -errno; -ENOSYS: before Linux 4.19. */
int64_t socket_sent(int fd);

#endif
