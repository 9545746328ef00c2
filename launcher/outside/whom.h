/* Asks the server that answers for a job: rendezvousd, or a hosting crun; of a list of hosts each in turn, until one
 * knows the job; over a Redis, an etcd, a Lease or a folder, the leader that the claim names. One blocking
 * connection, kept open. For commands that take no part in the job. */
#ifndef CRUN_LAUNCHER_WHOM_H
#define CRUN_LAUNCHER_WHOM_H

#include <stdbool.h>

#include "launcher/outside/ask_options.h"
#include "launcher/rendezvous/rdzv_ask.h"

struct err;
struct rdzv_home;

/* Help of --rdzv-endpoint. */
#define WHOM_HELP                                                                                                      \
    "HOST[:PORT] of a rendezvousd or of a crun that hosts a rendezvous; a list of hosts, as the job's nodes have it; " \
    "or the redis://, etcd://, k8s:// or file:// URL where its nodes meet"

struct whom {
    const struct ask_options *o;
    const char *run;     /* NULL: no job in particular */
    struct rdzv_ask ask; /* its timeout_ms may be changed */
    struct home_host list[HOME_LIST_MAX];
    int listed, at; /* number of hosts in the list; index of the one that is asked */
    int home_fd;    /* socket of the process that handles a shared folder; 0: none yet */
};

/* o, run: borrowed. ERR_USAGE. */
int whom_init(struct whom *w, const struct ask_options *o, const char *run, struct err *e);
void whom_finish(struct whom *w);
bool whom_is_shared(const struct whom *w); /* true: the job's nodes meet at a Redis, an etcd or in a folder */

/* Send one request of at most 6 words; the caller frees the reply. ERR_REFUSED: with the words of the last host that
 * answered, else why the last one cannot be reached; -ENOTCONN: nobody leads. */
int whom_request(struct whom *w, int argc, const char *const *words, redisReply **ret, struct err *e);

/* For hosts, not a shared home: ask until a reply fits (NULL: any but an error), else return the last one. */
int whom_ask_hosts(struct whom *w, int argc, const char *const *words, bool (*fits)(const redisReply *r),
                   redisReply **ret, struct err *e);
/* Of a list of daemons: ERR_MISMATCH, if two that answer keep different states; they are named. */
int whom_compare_states(struct whom *w, struct err *e);
/* Open a shared home; the caller closes it. */
int whom_open_home(struct whom *w, struct rdzv_home **ret, struct err *e);
/* Ask the leader. 1: it has answered; 0: there is none, or none of its addresses answers; ERR_REFUSED: it refuses. */
int whom_ask_leader(struct whom *w, struct rdzv_home *home, int argc, const char *const *words, redisReply **ret,
                    struct err *e);

int whom_exit_code(int rc); /* exit code of a command that ends with this error */

#endif
