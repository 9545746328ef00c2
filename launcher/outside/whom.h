/* Who answers for a job, wherever its nodes meet: a rendezvousd or a crun that hosts; of a list of hosts each in turn,
 * until one knows it; over a Redis or a folder the leader that its claim names. One blocking connection, kept while it
 * lasts. For commands of people who take no part in the job. */
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
    "or the redis:// or file:// URL where its nodes meet"

struct whom {
    const struct ask_options *o;
    const char *run;     /* NULL: no job in particular */
    struct rdzv_ask ask; /* its timeout_ms may be changed */
    struct home_host list[HOME_LIST_MAX];
    int listed, at; /* at: the one that is asked, of `listed` */
    int home_fd;    /* to the process that touches a folder; 0: none yet */
};

/* o, run: borrowed. ERR_USAGE. */
int whom_init(struct whom *w, const struct ask_options *o, const char *run, struct err *e);
void whom_finish(struct whom *w);
bool whom_is_shared(const struct whom *w); /* its nodes meet at a Redis or in a folder */

/* One request, at most 6 words, and its reply, the caller's. ERR_REFUSED: with what the last one said that answered,
 * else why the last cannot be reached; -ENOTCONN: nobody leads. */
int whom_request(struct whom *w, int argc, const char *const *words, redisReply **ret, struct err *e);

/* Not a shared home: until a reply fits (NULL: any does, but an error); else the last one. */
int whom_ask_hosts(struct whom *w, int argc, const char *const *words, bool (*fits)(const redisReply *r),
                   redisReply **ret, struct err *e);
/* A shared home, to be closed by the caller. */
int whom_open_home(struct whom *w, struct rdzv_home **ret, struct err *e);
/* 1: its leader has answered; 0: there is none, or none of its addresses answers; ERR_REFUSED: it refuses. */
int whom_ask_leader(struct whom *w, struct rdzv_home *home, int argc, const char *const *words, redisReply **ret,
                    struct err *e);

int whom_exit_code(int rc); /* of a command that ends with this error */

#endif
