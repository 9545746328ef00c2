/* Shared by store_resp*.c only: the store's state, and requests as words. */
#ifndef CRUN_COMMON_STORE_RESP_INTERNAL_H
#define CRUN_COMMON_STORE_RESP_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/net/redis_link.h"
#include "common/net/resp_conn.h"
#include "common/store/store.h"
#include "common/store/store_turn.h"

struct buf;
struct err;

enum { SMALL_REPLY = 1 << 20 }; /* bytes; of a reply that carries no value */

struct resp_store {
    struct turn_store base;
    struct redis_link link;
    struct resp_conn conn;
    struct resp_conn subscriber; /* plain Redis, during a wait */
    bool plain_redis;
};

enum { MAX_WORDS = 8 };

/* A request of a few words; they are borrowed. */
struct resp_words {
    const char *v[MAX_WORDS];
    size_t len[MAX_WORDS];
    int n;
};

struct resp_words resp_words(const char *verb, const char *key); /* key may be NULL */
void resp_words_add(struct resp_words *w, const void *data, size_t len);
int resp_words_append(const struct resp_words *w, struct resp_conn *c, struct err *e);

/* verb key... [last], queued. prefix goes before every key. */
int resp_words_append_many(struct resp_conn *c, const char *verb, const char *prefix, const struct store_call *call,
                           const char *last, struct err *e);

/* 0 if the reply is of the type; else the error it carries, or -EPROTO. */
int resp_expect(const redisReply *r, int type, struct err *e);

/* Append the value to the caller's buffer, if there are both. */
int resp_take_value(const redisReply *r, struct buf *value, struct err *e);

/* Send what is queued; one reply of the given type, which the caller frees. */
int resp_ask(struct resp_conn *c, int type, redisReply **ret, int64_t deadline, struct err *e);
int resp_ask_integer(struct resp_conn *c, int64_t *ret, int64_t deadline, struct err *e);

/* What rendezvousd has commands for, on a plain Redis. The write is w, on the key. */
int redis_set(struct resp_store *s, const struct resp_words *w, const char *key, int64_t deadline, struct err *e);
int redis_add(struct resp_store *s, const struct resp_words *w, const char *key, int64_t *ret, int64_t deadline,
              struct err *e);
int redis_wait(struct resp_store *s, const struct store_call *c, int64_t deadline, struct err *e);

#endif
