/* Requests from words, and replies of the type that is expected. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/store/store_resp_internal.h"

void resp_words_add(struct resp_words *w, const void *data, size_t len)
{
    w->v[w->n] = data ? data : "";
    w->len[w->n++] = len;
}

struct resp_words resp_words(const char *verb, const char *key)
{
    struct resp_words w = {0};
    resp_words_add(&w, verb, strlen(verb));
    if (key)
        resp_words_add(&w, key, strlen(key));
    return w;
}

int resp_words_append(const struct resp_words *w, struct resp_conn *c, struct err *e)
{
    return resp_append(c, w->n, w->v, w->len, e);
}

int resp_words_append_many(struct resp_conn *c, const char *verb, const char *prefix, const struct store_call *call,
                           const char *last, struct err *e)
{
    struct buf text = {0};
    size_t count = call->n + 1 + (last != NULL), at = 0;
    const char **v = calloc(count, sizeof *v);
    size_t *len = calloc(count, sizeof *len);
    int rc = v && len ? 0 : -ENOMEM;
    for (size_t i = 0; i < call->n && rc == 0; i++) {
        len[i + 1] = strlen(prefix) + strlen(call->keys[i]);
        rc = buf_printf(&text, "%s%s", prefix, call->keys[i]);
    }
    if (rc == 0) {
        v[0] = verb;
        len[0] = strlen(verb);
        for (size_t i = 1; i <= call->n; at += len[i++])
            v[i] = text.data + at;
        if (last) {
            v[count - 1] = last;
            len[count - 1] = strlen(last);
        }
        rc = resp_append(c, (int)count, v, len, e);
    } else
        err_set(e, rc, "out of memory");
    buf_free(&text);
    free(v);
    free(len);
    return rc;
}

int resp_expect(const redisReply *r, int type, struct err *e)
{
    if (r->type == type)
        return 0;
    if (r->type != REDIS_REPLY_ERROR)
        return err_set(e, -EPROTO, "a reply of type %d where %d belongs", r->type, type);
    bool value_is_wrong =
        strstr(r->str, "not an integer") || strstr(r->str, "overflow") || strncmp(r->str, "WRONGTYPE", 9) == 0;
    return err_set(e, value_is_wrong ? -EINVAL : ERR_REFUSED, "the server says: %.300s", r->str);
}

int resp_ask(struct resp_conn *c, int type, redisReply **ret, int64_t deadline, struct err *e)
{
    redisReply *r;
    TRY(resp_exchange(c, 1, &r, deadline, e));
    int rc = resp_expect(r, type, e);
    if (rc < 0)
        freeReplyObject(r);
    else
        *ret = r;
    return rc;
}

int resp_ask_integer(struct resp_conn *c, int64_t *ret, int64_t deadline, struct err *e)
{
    redisReply *r;
    TRY(resp_ask(c, REDIS_REPLY_INTEGER, &r, deadline, e));
    *ret = r->integer;
    freeReplyObject(r);
    return 0;
}

int resp_take_value(const redisReply *r, struct buf *value, struct err *e)
{
    int rc = value && r->type == REDIS_REPLY_STRING ? buf_add(value, r->str, (size_t)r->len) : 0;
    return rc < 0 ? err_set(e, rc, "a value of %zu bytes does not fit", (size_t)r->len) : 0;
}
