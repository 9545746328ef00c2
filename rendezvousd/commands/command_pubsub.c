/* Publish and subscribe. A subscribed client may only change its subscriptions, PING, RESET and QUIT (RESP2). */
#include "rendezvousd/commands/command_impl.h"
#include "rendezvousd/store/glob.h"
#include "rendezvousd/store/pubsub.h"

/* Of both kinds: what the last element of each answer tells. */
static size_t subscriptions(const struct conn *c)
{
    return pubsub_subscriptions(c->subscriber, TOPIC_CHANNEL) + pubsub_subscriptions(c->subscriber, TOPIC_PATTERN);
}

static void begin_answer(struct conn *c, const char *what, const struct request_arg *name)
{
    reply_array(&c->reply, 3);
    reply_text(&c->reply, what);
    if (name)
        reply_bulk(&c->reply, name->p, name->n);
    else
        reply_nil(&c->reply);
}

static void end_answer(struct conn *c)
{
    reply_int(&c->reply, (int64_t)subscriptions(c));
}

static void subscribe(struct conn *c, const struct request *rq, enum topic_kind kind, const char *what)
{
    if (!c->subscriber && pubsub_join(c->space->pubsub, c, &c->subscriber) < 0) {
        reply_error(&c->reply, NO_MEMORY);
        return;
    }
    for (size_t i = 1; i < rq->argc && !c->reply.failed; i++) {
        if (pubsub_subscribe(c->space->pubsub, c->subscriber, kind, &rq->argv[i]) < 0) {
            reply_error(&c->reply, NO_MEMORY);
            continue;
        }
        begin_answer(c, what, &rq->argv[i]);
        end_answer(c);
    }
}

/* Without any subscription left it is an ordinary client again. */
static void leave_if_done(struct conn *c)
{
    if (subscriptions(c) > 0)
        return;
    pubsub_leave(c->space->pubsub, c->subscriber);
    c->subscriber = NULL;
}

/* The name may be the topic's own: it is written before the topic goes. */
static void unsubscribe_one(struct conn *c, enum topic_kind kind, const char *what, const struct request_arg *name)
{
    begin_answer(c, what, name);
    if (c->subscriber)
        pubsub_unsubscribe(c->space->pubsub, c->subscriber, kind, name);
    end_answer(c);
}

static void unsubscribe(struct conn *c, const struct request *rq, enum topic_kind kind, const char *what)
{
    struct request_arg name;
    for (size_t i = 1; i < rq->argc; i++)
        unsubscribe_one(c, kind, what, &rq->argv[i]);
    if (rq->argc == 1 && !pubsub_any(c->subscriber, kind, &name)) {
        begin_answer(c, what, NULL);
        end_answer(c);
    }
    while (rq->argc == 1 && pubsub_any(c->subscriber, kind, &name))
        unsubscribe_one(c, kind, what, &name);
    leave_if_done(c);
}

void command_subscribe(struct conn *c, const struct request *rq)
{
    subscribe(c, rq, TOPIC_CHANNEL, "subscribe");
}

void command_psubscribe(struct conn *c, const struct request *rq)
{
    subscribe(c, rq, TOPIC_PATTERN, "psubscribe");
}

void command_unsubscribe(struct conn *c, const struct request *rq)
{
    unsubscribe(c, rq, TOPIC_CHANNEL, "unsubscribe");
}

void command_punsubscribe(struct conn *c, const struct request *rq)
{
    unsubscribe(c, rq, TOPIC_PATTERN, "punsubscribe");
}

static void deliver(void *arg, const struct request_arg *pattern, const struct request_arg *channel,
                    const struct request_arg *message)
{
    struct conn *c = arg;
    reply_array(&c->reply, pattern ? 4 : 3);
    reply_text(&c->reply, pattern ? "pmessage" : "message");
    if (pattern)
        reply_bulk(&c->reply, pattern->p, pattern->n);
    reply_bulk(&c->reply, channel->p, channel->n);
    reply_bulk(&c->reply, message->p, message->n);
    conn_push(c);
}

void command_publish(struct conn *c, const struct request *rq)
{
    size_t n = pubsub_publish(c->space->pubsub, &rq->argv[1], &rq->argv[2], deliver);
    reply_int(&c->reply, (int64_t)n);
}

struct channel_list {
    struct conn *c;
    const struct request_arg *pattern; /* NULL: all */
    size_t n;
    uint64_t work; /* what the pattern may still take */
    bool write;
};

static void list_channel(void *arg, const struct request_arg *name, size_t subscribers)
{
    struct channel_list *l = arg;
    (void)subscribers;
    if (l->pattern && !glob_match(l->pattern->p, l->pattern->n, name->p, name->n, &l->work))
        return;
    l->n++;
    if (l->write)
        reply_bulk(&l->c->reply, name->p, name->n);
}

static void pubsub_channels(struct conn *c, const struct request *rq)
{
    struct channel_list l = {.c = c, .pattern = rq->argc > 2 ? &rq->argv[2] : NULL, .work = GLOB_WORK};
    if (rq->argc > 3) {
        reply_error(&c->reply, "ERR unknown subcommand or wrong number of arguments for '%.*s'. Try PUBSUB HELP.",
                    (int)rq->argv[1].n, rq->argv[1].p);
        return;
    }
    pubsub_each(c->space->pubsub, TOPIC_CHANNEL, list_channel, &l);
    reply_array(&c->reply, l.n);
    l.work = GLOB_WORK;
    l.write = true;
    pubsub_each(c->space->pubsub, TOPIC_CHANNEL, list_channel, &l);
}

static void pubsub_numsub(struct conn *c, const struct request *rq)
{
    reply_array(&c->reply, 2 * (rq->argc - 2));
    for (size_t i = 2; i < rq->argc; i++) {
        reply_bulk(&c->reply, rq->argv[i].p, rq->argv[i].n);
        reply_int(&c->reply, (int64_t)pubsub_listeners(c->space->pubsub, &rq->argv[i]));
    }
}

static void pubsub_numpat(struct conn *c, const struct request *rq)
{
    (void)rq;
    reply_int(&c->reply, (int64_t)pubsub_count(c->space->pubsub, TOPIC_PATTERN));
}

void command_pubsub(struct conn *c, const struct request *rq)
{
    static const struct subcommand v[] = {
        {"channels", -2, pubsub_channels}, {"numsub", -2, pubsub_numsub}, {"numpat", 2, pubsub_numpat}};
    RUN_SUBCOMMAND(c, rq, "pubsub", v);
}
