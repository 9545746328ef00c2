/* Shared by rdzv_log_redis*.c only: a handle's state, and requests as words. */
#ifndef CRUN_COMMON_RDZV_LOG_REDIS_INTERNAL_H
#define CRUN_COMMON_RDZV_LOG_REDIS_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/net/redis_link.h"
#include "common/rdzv/homes/rdzv_home.h"

enum {
    OVER_KEEP_MS = 600000, /* a job that is over is remembered this long */
    PAGE = 500,            /* decisions of one read */
    MAX_REPLY = 256 << 20,
    MAX_REPLIES = 12,
};

enum key { KEY_CLAIM, KEY_LOG, KEY_OLD_EPOCH, KEY_OLD_LOG, KEY_COUNT };

struct redis_home {
    struct rdzv_home base;
    struct redis_link link;
    int64_t io_ms, keep_ms;
    char *keys[KEY_COUNT];
    char keep[24];
    struct resp_conn conn;
    bool over; /* the newest decision ends the job */
    bool allow_unsafe;
    int64_t given_lag_ms; /* by the user; 0: none */
    int64_t lag_ms;       /* rdzv_home_ops.lag_ms */
    bool took_over;       /* rdzv_home_ops.took_over; our first decision takes it away */
    bool cluster;
    long long min_replicas;               /* of its configuration, at least 1 */
    char identity[RDZV_IDENTITY_MAX + 1]; /* "": not asked */
    bool checked;                         /* the server on conn has that identity */
    uint64_t seq;                         /* of the newest decision of our term */
    bool unsure;                          /* whether that decision stands */
};

struct word {
    const char *p;
    size_t n;
};

/* Queue one request of argc words. */
int redis_queue(struct resp_conn *c, int argc, const struct word *w, struct err *e);

#define W(text)                                                                                                        \
    {                                                                                                                  \
        (text), strlen(text)                                                                                           \
    }
#define QUEUE(c, e, ...)                                                                                               \
    redis_queue((c), (int)(sizeof((struct word[]){__VA_ARGS__}) / sizeof(struct word)), (struct word[]){__VA_ARGS__},  \
                (e))

void redis_free_replies(redisReply **r, size_t n);

/* Send what is queued and take n replies; any error reply is this call's error, and ends the connection: what stands in
 * an unfinished transaction goes with it. */
int redis_converse(struct redis_home *h, size_t n, redisReply **r, struct err *e);
struct word redis_key(const struct redis_home *h, enum key k);

/* rdzv_log_redis_safe.c: what a server says of itself, and whether a leader may trust it. */
struct redis_facts {
    char run_id[44], replid[44]; /* which incarnation; "": it does not say */
    bool promoted;               /* it was a replica once */
    bool cluster, sentinel;
    int replicas;                      /* connected now */
    bool needs_replicas;               /* for a write: min-replicas-* of its configuration are not 0 */
    long long min_replicas, max_lag_s; /* of its configuration; -1: it does not say */
};
/* *ret_lag_ms: how long an old primary may go on acknowledging. ERR_REFUSED, with what to do. Pure. */
int redis_judge(const struct redis_facts *f, bool allow_unsafe, int64_t given_lag_ms, int64_t *ret_lag_ms,
                struct err *e);
/* Ask the server on h->conn. */
int redis_learn_facts(struct redis_home *h, struct redis_facts *ret, struct err *e);
int64_t redis_lag_ms(struct rdzv_home *base);
bool redis_took_over(struct rdzv_home *base);
/* Whether somebody has decided on this server, and that we have: a key of all jobs, crun:server. Servers that do not
 * let us are as if nobody had. */
int redis_learn_waited(struct redis_home *h, struct err *e);
int redis_note_waited(struct redis_home *h, struct err *e);
/* What was written until now is on as many replicas as a write needs: then no other server can have acknowledged any
 * meanwhile, for too few are left for it. -EAGAIN: it is not. */
int redis_await_replicas(struct redis_home *h, struct err *e);

#endif
