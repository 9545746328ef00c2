/* What a node asks a host of a list before it dials it (RDZV.SEATS): whom it hears, or that it is a daemon. One
 * connection for one question. */
#ifndef CRUN_LAUNCHER_HOST_QUESTION_H
#define CRUN_LAUNCHER_HOST_QUESTION_H

#include <stdbool.h>
#include <uv.h>

#include "common/rdzv/client/hosts.h"
#include "launcher/rendezvous/rdzv_dial.h"

struct auth_token;
struct tls_context;
struct host_question;

struct host_question_options { /* strings and token are borrowed until it is answered or closed */
    const struct endpoint *to;
    const char *run, *node;
    const struct auth_token *token; /* NULL: no proof is offered, none is asked for */
    bool insecure;
    struct tls_context *tls; /* borrowed; NULL: plain */
    /* Once, never from inside host_question_ask(); then it is closed. why: for people, "" with an answer. */
    void (*answered)(void *arg, struct host_question *q, enum hosts_answer answer, int seats, uint64_t round,
                     const char *why);
    /* Instead: a rendezvousd listens there. state: which one it shares with others; "": not known yet; NULL: none. */
    void (*daemon)(void *arg, struct host_question *q, const char *state);
    void *arg;
};

#define HOST_QUESTION_MS 1000 /* no answer by then is none */

/* NULL: no memory. */
struct host_question *host_question_ask(uv_loop_t *loop, const struct host_question_options *o);
void host_question_close(
    struct host_question *q); /* NULL allowed; no callback after it; the loop must turn once more */

#endif
