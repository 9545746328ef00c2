/* Whether a Redis is safe to lead over. A primary that has replicas may be replaced by one of them, and lose what it
 * had acknowledged, or live on behind a partition, and go on acknowledging. With min-replicas-to-write it stops that
 * after min-replicas-max-lag: then a successor can wait it out. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/rdzv/homes/rdzv_log_redis_internal.h"

#define REMEDY                                                                                                         \
    "on it and on its replicas say CONFIG SET min-replicas-to-write %d and CONFIG SET min-replicas-max-lag 10, or "    \
    "take the risk with --rdzv-conf allow_unsafe=1"

/* How many replicas a primary must have, so that of two sides of a cut one at most takes writes. */
static int least_replicas(int of)
{
    return of < 2 ? 1 : (of + 1) / 2;
}

int redis_judge(const struct redis_facts *f, bool allow_unsafe, int64_t given_lag_ms, int64_t *ret_lag_ms,
                struct err *e)
{
    const char *why = f->sentinel ? "it is behind Sentinel" : f->cluster ? "it is a Redis Cluster" : "it has replicas";
    bool replaced = f->sentinel || f->cluster || f->replicas > 0;
    int64_t lag = f->max_lag_s > 0 ? f->max_lag_s * 1000 : 0;
    char remedy[sizeof REMEDY + 12];
    snprintf(remedy, sizeof remedy, REMEDY, least_replicas(f->replicas));
    *ret_lag_ms = f->min_replicas >= 1 && lag > 0 ? lag : replaced || f->min_replicas >= 1 ? given_lag_ms : 0;
    if (allow_unsafe)
        return 0;
    if (!f->run_id[0] && !f->replid[0])
        return err_set(e, ERR_REFUSED,
                       "this server does not say which incarnation it is (INFO has neither run_id nor master_replid), "
                       "so that lost data would go unnoticed: use a Redis, or take the risk with --rdzv-conf "
                       "allow_unsafe=1");
    if (!replaced)
        return 0;
    const bool silent = f->min_replicas < 0 || f->max_lag_s < 0;
    if (silent && given_lag_ms <= 0)
        return err_set(e, ERR_REFUSED,
                       "this Redis may lose what it acknowledged (%s) and does not let CONFIG GET "
                       "min-replicas-* through: %s; then name the lag with --rdzv-conf max_lag=10",
                       why, remedy);
    if (silent ? !f->needs_replicas : f->min_replicas < 1 || lag == 0)
        return err_set(e, ERR_REFUSED, "this Redis may lose what it acknowledged (%s): %s", why, remedy);
    const long long least = silent ? 1 : f->min_replicas; /* that it has, as far as is known */
    if (f->replicas > 2 * least)
        return err_set(
            e, ERR_REFUSED,
            "this Redis may lose what it acknowledged (of its %d replicas a cut may leave %lld on each side, "
            "and both sides would take writes): %s",
            f->replicas, least, remedy);
    return 0;
}

/* --- asking */

static const char *text_of(const redisReply *r)
{
    return r->type == REDIS_REPLY_STRING ? r->str : "";
}

static void info_field(const char *info, const char *name, char *out, size_t cap)
{
    const char *p = strstr(info, name);
    p = p ? p + strlen(name) : "";
    snprintf(out, cap, "%.*s", (int)strcspn(p, "\r\n"), p);
}

/* The answer to what is queued, be it an error. */
static int ask_frankly(struct redis_home *h, redisReply **ret, struct err *e)
{
    return resp_exchange(&h->conn, 1, ret, clock_deadline(h->io_ms), e);
}

/* A number of the configuration; -1: the server does not say. */
static int config_number(struct redis_home *h, const char *name, long long *ret, struct err *e)
{
    redisReply *r;
    *ret = -1;
    TRY(QUEUE(&h->conn, e, W("CONFIG"), W("GET"), W(name)));
    TRY(ask_frankly(h, &r, e));
    if (r->type == REDIS_REPLY_ARRAY && r->elements == 2 && r->element[1]->type == REDIS_REPLY_STRING)
        *ret = strtoll(r->element[1]->str, NULL, 10);
    freeReplyObject(r);
    return 0;
}

int redis_learn_facts(struct redis_home *h, struct redis_facts *ret, struct err *e)
{
    redisReply *r[2];
    char word[16];
    *ret = (struct redis_facts){.sentinel = h->link.sentinel};
    TRY(QUEUE(&h->conn, e, W("INFO"), W("server")));
    TRY(QUEUE(&h->conn, e, W("INFO"), W("replication")));
    TRY(redis_converse(h, 2, r, e));
    info_field(text_of(r[0]), "run_id:", ret->run_id, sizeof ret->run_id);
    info_field(text_of(r[0]), "redis_mode:", word, sizeof word);
    ret->cluster = strcmp(word, "cluster") == 0;
    info_field(text_of(r[1]), "master_replid:", ret->replid, sizeof ret->replid);
    info_field(text_of(r[1]), "connected_slaves:", word, sizeof word);
    ret->replicas = atoi(word);
    ret->needs_replicas = strstr(text_of(r[1]), "min_slaves_good_slaves:") != NULL; /* is there only then */
    info_field(text_of(r[1]), "master_replid2:", word, sizeof word); /* of zeros: its data were always its own */
    ret->promoted = word[strspn(word, "0")] != 0;
    redis_free_replies(r, 2);
    TRY(config_number(h, "min-replicas-to-write", &ret->min_replicas, e));
    return config_number(h, "min-replicas-max-lag", &ret->max_lag_s, e);
}

int64_t redis_lag_ms(struct rdzv_home *base)
{
    return ((struct redis_home *)base)->lag_ms;
}

bool redis_took_over(struct rdzv_home *base)
{
    return ((struct redis_home *)base)->took_over;
}

static const char waited_key[] = "crun:server";

int redis_learn_waited(struct redis_home *h, struct err *e)
{
    redisReply *r;
    if (!h->took_over || h->cluster) /* where the key may be on another server */
        return 0;
    TRY(QUEUE(&h->conn, e, W("GET"), W(waited_key)));
    TRY(ask_frankly(h, &r, e));
    h->took_over = strcmp(text_of(r), h->identity) != 0;
    freeReplyObject(r);
    return 0;
}

int redis_note_waited(struct redis_home *h, struct err *e)
{
    redisReply *r;
    if (!h->took_over || h->cluster)
        return 0;
    h->took_over = false;
    TRY(QUEUE(&h->conn, e, W("SET"), W(waited_key), W(h->identity)));
    TRY(ask_frankly(h, &r, e));
    freeReplyObject(r);
    return 0;
}

int redis_await_replicas(struct redis_home *h, struct err *e)
{
    redisReply *r[2];
    char ms[24], replicas[24];
    if (h->lag_ms == 0 || h->allow_unsafe)
        return 0;
    snprintf(ms, sizeof ms, "%lld", (long long)h->io_ms / 2 + 1);
    snprintf(replicas, sizeof replicas, "%lld", h->min_replicas);
    /* a write, for what is there already says nothing of now */
    TRY(QUEUE(&h->conn, e, W("PEXPIRE"), redis_key(h, KEY_CLAIM), W(h->keep)));
    TRY(QUEUE(&h->conn, e, W("WAIT"), W(replicas), W(ms)));
    TRY(redis_converse(h, 2, r, e));
    const long long n = r[1]->type == REDIS_REPLY_INTEGER ? r[1]->integer : 0;
    redis_free_replies(r, 2);
    return n >= h->min_replicas ? 0
                                : err_set(e, -EAGAIN, "%lld replicas of this Redis answer, not %lld: it may be cut off",
                                          n, h->min_replicas);
}
