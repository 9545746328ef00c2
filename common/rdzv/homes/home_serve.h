/* The other end of rdzv_home_far.c: calls that come over a socket, made on a home that is at hand. */
#ifndef CRUN_COMMON_HOME_SERVE_H
#define CRUN_COMMON_HOME_SERVE_H

struct rdzv_home;

/* Until the socket is at its end. Closes the home. Blocks. */
void home_serve(struct rdzv_home *home, int fd);

#endif
