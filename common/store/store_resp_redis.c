/* The store's operations on a plain Redis: transactions that announce what they write, and waiters that subscribe, then
 * check. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/err.h"
#include "common/store/store_resp_internal.h"

#define CHANNEL "__store__:"

static int queue_transaction(struct resp_store *s, const struct resp_words *w, const char *key, struct err *e)
{
    char *channel;
    if (asprintf(&channel, CHANNEL "%s", key) < 0)
        return err_set(e, -ENOMEM, "out of memory");
    struct resp_words multi = resp_words("MULTI", NULL), publish = resp_words("PUBLISH", channel),
                      exec = resp_words("EXEC", NULL);
    resp_words_add(&publish, "", 0);
    const struct resp_words *all[] = {&multi, w, &publish, &exec};
    int rc = 0;
    for (size_t i = 0; i < 4 && rc == 0; i++)
        rc = resp_words_append(all[i], &s->conn, e);
    free(channel);
    if (rc < 0)
        resp_hang_up(&s->conn); /* drops the part that was queued */
    return rc;
}

/* A command and its announcement. The command's reply is within *ret, which the caller frees. */
static int transaction(struct resp_store *s, const struct resp_words *w, const char *key, redisReply **ret,
                       int64_t deadline, struct err *e)
{
    redisReply *r[4];
    TRY(queue_transaction(s, w, key, e));
    TRY(resp_exchange(&s->conn, 4, r, deadline, e));
    int rc = resp_expect(r[1], REDIS_REPLY_STATUS, e);
    if (rc == 0)
        rc = resp_expect(r[3], REDIS_REPLY_ARRAY, e);
    if (rc == 0 && r[3]->elements != 2)
        rc = err_set(e, -EPROTO, "EXEC: %zu replies, expected 2", r[3]->elements);
    *ret = r[3];
    for (int i = 0; i < (rc == 0 ? 3 : 4); i++)
        freeReplyObject(r[i]);
    return rc;
}

int redis_set(struct resp_store *s, const struct resp_words *w, const char *key, int64_t deadline, struct err *e)
{
    redisReply *r;
    TRY(transaction(s, w, key, &r, deadline, e));
    int rc = resp_expect(r->element[0], REDIS_REPLY_STATUS, e);
    freeReplyObject(r);
    return rc;
}

int redis_add(struct resp_store *s, const struct resp_words *w, const char *key, int64_t *ret, int64_t deadline,
              struct err *e)
{
    redisReply *r;
    TRY(transaction(s, w, key, &r, deadline, e));
    int rc = resp_expect(r->element[0], REDIS_REPLY_INTEGER, e);
    if (rc == 0)
        *ret = r->element[0]->integer;
    freeReplyObject(r);
    return rc;
}

static int all_exist(struct resp_store *s, const struct store_call *c, int64_t deadline, struct err *e)
{
    int64_t found;
    TRY(resp_words_append_many(&s->conn, "EXISTS", "", c, NULL, e));
    TRY(resp_ask_integer(&s->conn, &found, deadline, e));
    return found == (int64_t)c->n;
}

static int plain_wait_subscribed(struct resp_store *s, const struct store_call *c, int64_t deadline, struct err *e)
{
    redisReply *r;
    TRY(resp_words_append_many(&s->subscriber, "SUBSCRIBE", CHANNEL, c, NULL, e));
    for (size_t i = 0; i < c->n; i++) {
        TRY(i == 0 ? resp_exchange(&s->subscriber, 1, &r, deadline, e) : resp_receive(&s->subscriber, &r, deadline, e));
        freeReplyObject(r);
    }
    for (;;) {
        int rc = all_exist(s, c, deadline, e);
        if (rc != 0)
            return rc < 0 ? rc : 0;
        TRY(resp_receive(&s->subscriber, &r, deadline, e));
        freeReplyObject(r);
    }
}

int redis_wait(struct resp_store *s, const struct store_call *c, int64_t deadline, struct err *e)
{
    int rc = all_exist(s, c, deadline, e);
    if (rc != 0)
        return rc < 0 ? rc : 0;
    TRY(redis_link_dial(&s->link, &s->subscriber, deadline, e));
    rc = plain_wait_subscribed(s, c, deadline, e);
    resp_hang_up(&s->subscriber);
    return rc;
}
