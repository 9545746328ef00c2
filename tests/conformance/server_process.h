/* A server as a child process on a loopback port, for tests. */
#ifndef CRUN_TESTS_CONFORMANCE_SERVER_PROCESS_H
#define CRUN_TESTS_CONFORMANCE_SERVER_PROCESS_H

#include <stdbool.h>
#include <sys/types.h>

struct server_process {
    pid_t pid; /* 0: not running */
    int port;
};

/* argv: the command; a word "PORT" in it is replaced. A port that was free a moment ago is picked, again if somebody
 * was faster; or the one in *p is used, if it is not 0. Returns when the server accepts connections. False if it cannot
 * be started at all. */
bool server_process_start(struct server_process *p, char *const argv[]);
void server_process_stop(struct server_process *p);

#endif
