/* See transaction.h. One allocation a request: its arguments, then their bytes. */
#include "rendezvousd/store/transaction.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct transaction *transaction_begin(void)
{
    struct transaction *t = calloc(1, sizeof *t);
    if (!t)
        return NULL;
    t->last = &t->first;
    t->bytes = sizeof *t;
    return t;
}

int transaction_queue(struct transaction *t, const struct command *cmd, const struct request *rq)
{
    size_t bytes = sizeof(struct queued) + rq->argc * sizeof *rq->argv;
    for (size_t i = 0; i < rq->argc; i++)
        bytes += rq->argv[i].n;
    struct queued *q = malloc(bytes);
    if (!q)
        return -ENOMEM;
    *q = (struct queued){.command = cmd, .rq = {.argv = q->argv, .argc = rq->argc}};
    char *p = (char *)(q->argv + rq->argc);
    for (size_t i = 0; i < rq->argc; i++) {
        q->argv[i] = (struct request_arg){p, rq->argv[i].n};
        memcpy(p, rq->argv[i].p, rq->argv[i].n);
        p += rq->argv[i].n;
    }
    *t->last = q;
    t->last = &q->next;
    t->n++;
    t->bytes += bytes;
    return 0;
}

void transaction_spoil(struct transaction *t)
{
    if (t)
        t->spoilt = true;
}

void transaction_free(struct transaction *t)
{
    if (!t)
        return;
    while (t->first) {
        struct queued *q = t->first;
        t->first = q->next;
        free(q);
    }
    free(t);
}
