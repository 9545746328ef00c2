/* Commands on lists. What blocks is in command_block.c. */
#include "rendezvousd/commands/command_list.h"
#include "rendezvousd/commands/command_impl.h"
#include "rendezvousd/store/list.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* The key's entry; *ret NULL: no such key. False after WRONGTYPE. */
static bool want_entry(struct conn *c, const struct request_arg *key, struct key **ret)
{
    int rc = keyspace_list(c->space->keys, key->p, key->n, false, ret);
    if (rc == -ENOENT)
        *ret = NULL;
    if (rc == -EPROTOTYPE)
        reply_error(&c->reply, WRONG_TYPE);
    return rc != -EPROTOTYPE;
}

/* --- ends */

static void push(struct conn *c, const struct request *rq, bool front, bool only_existing)
{
    const struct request_arg *key = &rq->argv[1];
    struct key *en;
    int rc = keyspace_list(c->space->keys, key->p, key->n, !only_existing, &en);
    if (rc == -ENOENT) {
        reply_int(&c->reply, 0);
        return;
    }
    if (rc < 0) {
        say_failure(c, rc);
        return;
    }
    struct list *l = key_list(en);
    size_t n = l->n;
    for (size_t i = 2; rc == 0 && i < rq->argc; i++)
        rc = list_push(l, front, rq->argv[i].p, rq->argv[i].n);
    while (rc < 0 && l->n > n) /* all or none */
        free(list_pop(l, front));
    n = l->n;
    keyspace_settle(c->space->keys, en);
    if (rc < 0)
        say_failure(c, rc);
    else
        reply_int(&c->reply, (int64_t)n);
}

void command_lpush(struct conn *c, const struct request *rq)
{
    push(c, rq, true, false);
}

void command_rpush(struct conn *c, const struct request *rq)
{
    push(c, rq, false, false);
}

void command_lpushx(struct conn *c, const struct request *rq)
{
    push(c, rq, true, true);
}

void command_rpushx(struct conn *c, const struct request *rq)
{
    push(c, rq, false, true);
}

static void reply_item(struct conn *c, const struct item *it)
{
    reply_bulk(&c->reply, it->p, it->n);
}

static void pop(struct conn *c, const struct request *rq, bool front, const char *command)
{
    int64_t count = 1;
    struct key *en;
    bool many = rq->argc == 3;
    if (rq->argc > 3) {
        reply_error(&c->reply, "ERR wrong number of arguments for '%s' command", command);
        return;
    }
    if (many && (!request_i64(rq->argv[2].p, rq->argv[2].n, &count) || count < 0)) {
        reply_error(&c->reply, "ERR value is out of range, must be positive");
        return;
    }
    if (!want_entry(c, &rq->argv[1], &en))
        return;
    if (!en) {
        if (many)
            reply_nil_array(&c->reply);
        else
            reply_nil(&c->reply);
        return;
    }
    struct list *l = key_list(en);
    size_t n = (uint64_t)count < l->n ? (size_t)count : l->n;
    if (many)
        reply_array(&c->reply, n);
    for (; n > 0; n--) {
        struct item *it = list_pop(l, front);
        reply_item(c, it);
        free(it);
    }
    if (count > 0)
        keyspace_settle(c->space->keys, en);
}

void command_lpop(struct conn *c, const struct request *rq)
{
    pop(c, rq, true, "lpop");
}

void command_rpop(struct conn *c, const struct request *rq)
{
    pop(c, rq, false, "rpop");
}

/* --- looking */

void command_llen(struct conn *c, const struct request *rq)
{
    struct list *l;
    if (want_list(c, &rq->argv[1], &l))
        reply_int(&c->reply, l ? (int64_t)l->n : 0);
}

/* The index a negative number counts from the end. */
static int64_t from_end(int64_t i, const struct list *l)
{
    return i < 0 ? i + (int64_t)l->n : i;
}

void command_lindex(struct conn *c, const struct request *rq)
{
    struct list *l;
    int64_t i;
    if (!want_list(c, &rq->argv[1], &l))
        return;
    if (!l) {
        reply_nil(&c->reply);
        return;
    }
    if (!want_i64(c, &rq->argv[2], &i))
        return;
    i = from_end(i, l);
    if (i < 0 || (uint64_t)i >= l->n)
        reply_nil(&c->reply);
    else
        reply_item(c, list_at(l, (size_t)i));
}

/* From two indices to a first one and a number, 0 if nothing lies between them. */
static size_t range(const struct list *l, int64_t from, int64_t to, size_t *first)
{
    from = from_end(from, l);
    to = from_end(to, l);
    from = from < 0 ? 0 : from;
    to = to >= (int64_t)l->n ? (int64_t)l->n - 1 : to;
    *first = from <= to ? (size_t)from : 0;
    return from <= to ? (size_t)(to - from + 1) : 0;
}

void command_lrange(struct conn *c, const struct request *rq)
{
    struct list *l;
    int64_t from, to;
    size_t first = 0, n = 0;
    if (!want_i64(c, &rq->argv[2], &from) || !want_i64(c, &rq->argv[3], &to) || !want_list(c, &rq->argv[1], &l))
        return;
    if (l)
        n = range(l, from, to, &first);
    reply_array(&c->reply, n);
    for (size_t i = 0; i < n && !c->reply.failed; i++)
        reply_item(c, list_at(l, first + i));
}

/* --- changes inside */

void command_ltrim(struct conn *c, const struct request *rq)
{
    struct key *en;
    int64_t from, to;
    if (!want_i64(c, &rq->argv[2], &from) || !want_i64(c, &rq->argv[3], &to) || !want_entry(c, &rq->argv[1], &en))
        return;
    if (en) {
        size_t first, n = range(key_list(en), from, to, &first);
        list_keep(key_list(en), first, n);
        keyspace_settle(c->space->keys, en);
    }
    reply_status(&c->reply, "OK");
}

void command_lset(struct conn *c, const struct request *rq)
{
    struct key *en;
    int64_t i;
    if (!want_entry(c, &rq->argv[1], &en))
        return;
    if (!en) {
        reply_error(&c->reply, "ERR no such key");
        return;
    }
    if (!want_i64(c, &rq->argv[2], &i))
        return;
    i = from_end(i, key_list(en));
    if (i < 0 || (uint64_t)i >= key_list(en)->n) {
        reply_error(&c->reply, "ERR index out of range");
        return;
    }
    int rc = list_set(key_list(en), (size_t)i, rq->argv[3].p, rq->argv[3].n);
    keyspace_settle(c->space->keys, en);
    if (rc < 0)
        say_failure(c, rc);
    else
        reply_status(&c->reply, "OK");
}

static int64_t find_pivot(const struct list *l, const struct request_arg *pivot)
{
    for (size_t i = 0; i < l->n; i++) {
        const struct item *it = list_at(l, i);
        if (it->n == pivot->n && memcmp(it->p, pivot->p, it->n) == 0)
            return (int64_t)i;
    }
    return -1;
}

void command_linsert(struct conn *c, const struct request *rq)
{
    struct key *en;
    bool after = request_arg_is(&rq->argv[2], "after");
    if (!after && !request_arg_is(&rq->argv[2], "before")) {
        reply_error(&c->reply, SYNTAX_ERROR);
        return;
    }
    if (!want_entry(c, &rq->argv[1], &en))
        return;
    int64_t at = en ? find_pivot(key_list(en), &rq->argv[3]) : 0;
    if (!en || at < 0) {
        reply_int(&c->reply, at);
        return;
    }
    int rc = list_insert(key_list(en), (size_t)at + after, rq->argv[4].p, rq->argv[4].n);
    size_t n = key_list(en)->n;
    keyspace_settle(c->space->keys, en);
    if (rc < 0)
        say_failure(c, rc);
    else
        reply_int(&c->reply, (int64_t)n);
}

void command_lrem(struct conn *c, const struct request *rq)
{
    struct key *en;
    int64_t count;
    size_t removed = 0;
    if (!want_i64(c, &rq->argv[2], &count) || !want_entry(c, &rq->argv[1], &en))
        return;
    if (en)
        removed = list_remove(key_list(en), rq->argv[3].p, rq->argv[3].n, count);
    if (removed)
        keyspace_settle(c->space->keys, en);
    reply_int(&c->reply, (int64_t)removed);
}

/* --- from one list to another */

bool want_end(struct conn *c, const struct request_arg *a, bool *front)
{
    *front = request_arg_is(a, "left");
    if (*front || request_arg_is(a, "right"))
        return true;
    reply_error(&c->reply, SYNTAX_ERROR);
    return false;
}

enum moved list_move(struct conn *c, const struct request_arg *from, const struct request_arg *to, bool from_front,
                     bool to_front)
{
    struct keyspace *k = c->space->keys;
    struct key *en;
    size_t n;
    if (!want_entry(c, from, &en))
        return MOVED_ERROR;
    if (!en)
        return MOVED_NOTHING;
    if (keyspace_type(k, to->p, to->n) == KEY_STRING) {
        reply_error(&c->reply, WRONG_TYPE);
        return MOVED_ERROR;
    }
    const struct item *last = list_at(key_list(en), from_front ? 0 : key_list(en)->n - 1);
    size_t mark = c->reply.out.len;
    reply_item(c, last);
    int rc = keyspace_push(k, to->p, to->n, last->p, last->n, to_front, &n, NULL); /* a copy first: nothing gets lost */
    if (rc < 0) {
        c->reply.out.len = mark;
        say_failure(c, rc);
        return MOVED_ERROR;
    }
    free(keyspace_pop(k, from->p, from->n, from_front));
    return MOVED;
}

static void move(struct conn *c, const struct request_arg *from, const struct request_arg *to, bool from_front,
                 bool to_front)
{
    if (list_move(c, from, to, from_front, to_front) == MOVED_NOTHING)
        reply_nil(&c->reply);
}

void command_lmove(struct conn *c, const struct request *rq)
{
    bool from_front, to_front;
    if (want_end(c, &rq->argv[3], &from_front) && want_end(c, &rq->argv[4], &to_front))
        move(c, &rq->argv[1], &rq->argv[2], from_front, to_front);
}

void command_rpoplpush(struct conn *c, const struct request *rq)
{
    move(c, &rq->argv[1], &rq->argv[2], false, true);
}
