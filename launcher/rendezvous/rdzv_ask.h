/* Questions of one who takes part in no job (crun status, crun doctor) to a rendezvousd, or to a crun that hosts: one
 * blocking connection. */
#ifndef CRUN_LAUNCHER_RDZV_ASK_H
#define CRUN_LAUNCHER_RDZV_ASK_H

#include <stdbool.h>
#include <stdint.h>

#include "common/net/resp_conn.h"
#include "launcher/config/home.h"

struct err;

struct rdzv_ask {
    char host[HOME_HOST_MAX + 1], port[16];
    const char *token_file, *ca; /* NULL: the user's own token; the system's certificates */
    bool tls;
    int64_t timeout_ms; /* of each wait */
    struct resp_conn conn;
};

/* endpoint: HOST[:PORT]. The other fields are the caller's to set, before or after. ERR_USAGE. */
int rdzv_ask_init(struct rdzv_ask *a, const char *endpoint, struct err *e);

/* Connect and authenticate, unless that is done. ERR_REFUSED: by who is there; -ECONNREFUSED and the like: nobody
 * is. */
int rdzv_ask_open(struct rdzv_ask *a, struct err *e);

/* One request, at most 6 words, and its reply, to be freed with freeReplyObject(). An error reply is ERR_REFUSED with
 * its text. */
int rdzv_ask(struct rdzv_ask *a, int argc, const char *const *argv, redisReply **ret, struct err *e);

void rdzv_ask_finish(struct rdzv_ask *a);

#endif
