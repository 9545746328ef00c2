#ifndef CRUN_WORKER_SOCKET_SENT_H
#define CRUN_WORKER_SOCKET_SENT_H

#include <stdint.h>

/* Bytes of data that the kernel has sent over a TCP connection so far, each once. -errno; -ENOSYS: before Linux
 * 4.19. */
int64_t socket_sent(int fd);

#endif
