/* See pubsub.h. A topic has a list of links, one per subscriber, in the order they came; a subscriber has its links in
 * the order it subscribed. */
#include "rendezvousd/store/pubsub.h"
#include "rendezvousd/store/glob.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define HASH_NONFATAL_OOM 1
#include "common/base/seeded_hash.h"
#include <utlist.h>

struct topic {
    UT_hash_handle hh;
    struct link *links;
    size_t count;
    size_t name_len;
    char name[];
};

struct link {
    struct subscriber *owner;
    struct topic *topic;
    struct link *prev, *next;     /* in topic->links */
    struct link *o_prev, *o_next; /* in owner->links[kind] */
};

struct subscriber {
    void *arg;
    struct link *links[2];
    size_t count[2];
    size_t bytes;
};

struct pubsub {
    struct topic *topics[2];
};

int pubsub_create(struct pubsub **ret)
{
    *ret = calloc(1, sizeof **ret);
    return *ret ? 0 : -ENOMEM;
}

void pubsub_destroy(struct pubsub *p)
{
    free(p);
}

int pubsub_join(struct pubsub *p, void *arg, struct subscriber **ret)
{
    (void)p;
    struct subscriber *s = calloc(1, sizeof *s);
    if (!s)
        return -ENOMEM;
    s->arg = arg;
    *ret = s;
    return 0;
}

static struct topic *find_topic(const struct pubsub *p, enum topic_kind kind, const struct request_arg *name)
{
    struct topic *t;
    HASH_FIND(hh, p->topics[kind], name->p, name->n, t);
    return t;
}

static struct topic *make(struct pubsub *p, enum topic_kind kind, const struct request_arg *name)
{
    struct topic *t = calloc(1, sizeof *t + name->n);
    if (!t)
        return NULL;
    memcpy(t->name, name->p, name->n);
    t->name_len = name->n;
    HASH_ADD_KEYPTR(hh, p->topics[kind], t->name, name->n, t);
    if (t->hh.tbl)
        return t;
    free(t);
    return NULL;
}

static size_t link_bytes(const struct topic *t)
{
    return sizeof(struct link) + sizeof *t + t->name_len;
}

static void drop_unheard(struct pubsub *p, enum topic_kind kind, struct topic *t)
{
    if (t->links)
        return;
    HASH_DEL(p->topics[kind], t);
    free(t);
}

/* Looked for where there is less to look through. */
static struct link *link_of(const struct subscriber *s, enum topic_kind kind, const struct topic *t)
{
    struct link *l;
    if (t->count < s->count[kind]) {
        DL_FOREACH (t->links, l)
            if (l->owner == s)
                return l;
    } else {
        DL_FOREACH2(s->links[kind], l, o_next)
        if (l->topic == t)
            return l;
    }
    return NULL;
}

int pubsub_subscribe(struct pubsub *p, struct subscriber *s, enum topic_kind kind, const struct request_arg *name)
{
    struct topic *t = find_topic(p, kind, name);
    if (t && link_of(s, kind, t))
        return 1;
    if (!t && !(t = make(p, kind, name)))
        return -ENOMEM;
    struct link *l = calloc(1, sizeof *l);
    if (!l) {
        drop_unheard(p, kind, t);
        return -ENOMEM;
    }
    l->owner = s;
    l->topic = t;
    DL_APPEND(t->links, l);
    DL_APPEND2(s->links[kind], l, o_prev, o_next);
    t->count++;
    s->count[kind]++;
    s->bytes += link_bytes(t);
    return 0;
}

static void remove_link(struct pubsub *p, enum topic_kind kind, struct link *l)
{
    struct topic *t = l->topic;
    l->owner->bytes -= link_bytes(t);
    l->owner->count[kind]--;
    DL_DELETE2(l->owner->links[kind], l, o_prev, o_next);
    DL_DELETE(t->links, l);
    t->count--;
    free(l);
    drop_unheard(p, kind, t);
}

bool pubsub_unsubscribe(struct pubsub *p, struct subscriber *s, enum topic_kind kind, const struct request_arg *name)
{
    struct topic *t = find_topic(p, kind, name);
    struct link *l = t ? link_of(s, kind, t) : NULL;
    if (l)
        remove_link(p, kind, l);
    return l != NULL;
}

void pubsub_leave(struct pubsub *p, struct subscriber *s)
{
    if (!s)
        return;
    for (enum topic_kind kind = TOPIC_CHANNEL; kind <= TOPIC_PATTERN; kind++)
        while (s->links[kind])
            remove_link(p, kind, s->links[kind]);
    free(s);
}

bool pubsub_any(const struct subscriber *s, enum topic_kind kind, struct request_arg *ret)
{
    if (!s || !s->links[kind])
        return false;
    *ret = (struct request_arg){s->links[kind]->topic->name, s->links[kind]->topic->name_len};
    return true;
}

size_t pubsub_subscriptions(const struct subscriber *s, enum topic_kind kind)
{
    return s ? s->count[kind] : 0;
}

size_t pubsub_bytes(const struct subscriber *s)
{
    return s ? sizeof *s + s->bytes : 0;
}

size_t pubsub_publish(struct pubsub *p, const struct request_arg *channel, const struct request_arg *message,
                      void (*deliver)(void *arg, const struct request_arg *pattern, const struct request_arg *channel,
                                      const struct request_arg *message))
{
    uint64_t work = GLOB_WORK;
    size_t heard = 0;
    const struct link *l;
    const struct topic *t = find_topic(p, TOPIC_CHANNEL, channel);
    if (t) {
        DL_FOREACH (t->links, l) {
            deliver(l->owner->arg, NULL, channel, message);
            heard++;
        }
    }
    for (t = p->topics[TOPIC_PATTERN]; t; t = t->hh.next) {
        if (!glob_match(t->name, t->name_len, channel->p, channel->n, &work))
            continue;
        struct request_arg pattern = {t->name, t->name_len};
        DL_FOREACH (t->links, l) {
            deliver(l->owner->arg, &pattern, channel, message);
            heard++;
        }
    }
    return heard;
}

void pubsub_each(const struct pubsub *p, enum topic_kind kind,
                 void (*visit)(void *arg, const struct request_arg *name, size_t subscribers), void *arg)
{
    for (const struct topic *t = p->topics[kind]; t; t = t->hh.next)
        visit(arg, &(struct request_arg){t->name, t->name_len}, t->count);
}

size_t pubsub_count(const struct pubsub *p, enum topic_kind kind)
{
    return HASH_COUNT(p->topics[kind]);
}

size_t pubsub_listeners(const struct pubsub *p, const struct request_arg *channel)
{
    const struct topic *t = find_topic(p, TOPIC_CHANNEL, channel);
    return t ? t->count : 0;
}
