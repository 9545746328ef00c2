/* Requests kept between MULTI and EXEC. Pure. */
#ifndef CRUN_RENDEZVOUSD_TRANSACTION_H
#define CRUN_RENDEZVOUSD_TRANSACTION_H

#include "rendezvousd/resp/request.h"

struct command;

struct queued {
    struct queued *next;
    const struct command *command;
    struct request rq; /* its own copy */
    struct request_arg argv[];
};

struct transaction {
    struct queued *first, **last;
    size_t n, bytes;
    bool spoilt; /* a request was refused: EXEC will be, too */
};

struct transaction *transaction_begin(void);                                                       /* NULL: no memory */
int transaction_queue(struct transaction *t, const struct command *cmd, const struct request *rq); /* -ENOMEM */
void transaction_spoil(struct transaction *t);                                                     /* NULL allowed */
void transaction_free(struct transaction *t);

#endif
