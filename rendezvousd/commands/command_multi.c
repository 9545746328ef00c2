/* Transactions: MULTI queues, EXEC runs what was queued in one go unless a watched key has changed. Nothing blocks
 * inside. */
#include "rendezvousd/commands/command_impl.h"
#include "rendezvousd/store/pubsub.h"
#include "rendezvousd/store/transaction.h"

static void unwatch(struct conn *c)
{
    watches_forget(c->space->watches, &c->watcher);
}

void transaction_end(struct conn *c)
{
    transaction_free(c->txn);
    c->txn = NULL;
    unwatch(c);
}

void command_multi(struct conn *c, const struct request *rq)
{
    (void)rq;
    if (c->txn)
        reply_error(&c->reply, "ERR MULTI calls can not be nested");
    else if (!(c->txn = transaction_begin()))
        reply_error(&c->reply, NO_MEMORY);
    else
        reply_status(&c->reply, "OK");
}

void command_discard(struct conn *c, const struct request *rq)
{
    (void)rq;
    if (!c->txn) {
        reply_error(&c->reply, "ERR DISCARD without MULTI");
        return;
    }
    transaction_end(c);
    reply_status(&c->reply, "OK");
}

static void execute(struct conn *c, const struct transaction *t)
{
    c->in_exec = true;
    reply_array(&c->reply, t->n);
    for (const struct queued *q = t->first; q && !c->closing; q = q->next) {
        if ((q->command->flags & COMMAND_GROWS) && !keyspace_fits(c->space->keys, 0))
            reply_error(&c->reply, NO_MEMORY);
        else
            q->command->run(c, &q->rq);
    }
    c->in_exec = false;
}

void command_exec(struct conn *c, const struct request *rq)
{
    struct transaction *t = c->txn;
    (void)rq;
    if (!t) {
        reply_error(&c->reply, "ERR EXEC without MULTI");
        return;
    }
    keyspace_expire_due(c->space->keys, SIZE_MAX); /* a watched key that has expired has changed */
    bool broken = c->watcher.broken;
    unwatch(c);
    c->txn = NULL;
    if (t->spoilt)
        reply_error(&c->reply, "EXECABORT Transaction discarded because of previous errors.");
    else if (broken)
        reply_nil_array(&c->reply);
    else
        execute(c, t);
    transaction_free(t);
}

void command_watch(struct conn *c, const struct request *rq)
{
    if (c->txn) {
        reply_error(&c->reply, "ERR WATCH inside MULTI is not allowed");
        return;
    }
    for (size_t i = 1; i < rq->argc; i++) {
        keyspace_type(c->space->keys, rq->argv[i].p, rq->argv[i].n); /* one that has expired goes now */
        if (watches_add(c->space->watches, &c->watcher, &rq->argv[i]) < 0) {
            reply_error(&c->reply, NO_MEMORY);
            return;
        }
    }
    reply_status(&c->reply, "OK");
}

void command_unwatch(struct conn *c, const struct request *rq)
{
    (void)rq;
    unwatch(c);
    reply_status(&c->reply, "OK");
}

void command_forget(struct conn *c)
{
    transaction_end(c);
    pubsub_leave(c->space->pubsub, c->subscriber);
    c->subscriber = NULL;
}

size_t command_held_bytes(const struct conn *c)
{
    return (c->txn ? c->txn->bytes : 0) + c->watcher.bytes + pubsub_bytes(c->subscriber);
}
