/* Keys that expire. Users name wall-clock times; inside, everything is the loop's monotonic clock, so a clock that is
 * set moves only what is asked for afterwards. */
#include "common/base/clock.h"
#include "rendezvousd/commands/command_impl.h"
#include <errno.h>
#include <time.h>

static int64_t unix_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* *ret: ms since 1970, as Redis computes (and refuses) it. */
static bool unix_time(struct conn *c, const struct expiry_time *t, int64_t now, const char *command, int64_t *ret)
{
    int64_t ms = t->value;
    bool bad = t->seconds && __builtin_mul_overflow(ms, (int64_t)1000, &ms);
    bad = bad || __builtin_add_overflow(ms, t->absolute ? 0 : now, ret);
    if (bad)
        reply_error(&c->reply, "ERR invalid expire time in '%s' command", command);
    return !bad;
}

bool expiry_at(struct conn *c, const struct expiry_time *t, const char *command, int64_t *ret)
{
    int64_t now = unix_ms(), at;
    if (t->value <= 0) {
        reply_error(&c->reply, "ERR invalid expire time in '%s' command", command);
        return false;
    }
    if (!unix_time(c, t, now, command, &at))
        return false;
    int64_t mono = keyspace_now(c->space->keys) + (at - now);
    *ret = mono > 0 ? mono : 1; /* long past */
    return true;
}

/* --- EXPIRE and its kin */

enum { ONLY_NONE = 1, ONLY_SOME = 2, ONLY_LATER = 4, ONLY_SOONER = 8 };

static bool conditions(struct conn *c, const struct request *rq, int *ret)
{
    int f = 0;
    for (size_t i = 3; i < rq->argc; i++) {
        const struct request_arg *a = &rq->argv[i];
        if (request_arg_is(a, "nx"))
            f |= ONLY_NONE;
        else if (request_arg_is(a, "xx"))
            f |= ONLY_SOME;
        else if (request_arg_is(a, "gt"))
            f |= ONLY_LATER;
        else if (request_arg_is(a, "lt"))
            f |= ONLY_SOONER;
        else {
            reply_error(&c->reply, "ERR Unsupported option %.*s", a->n < 128 ? (int)a->n : 128, a->p);
            return false;
        }
    }
    if ((f & ONLY_NONE) && (f & ~ONLY_NONE)) {
        reply_error(&c->reply, "ERR NX and XX, GT or LT options at the same time are not compatible");
        return false;
    }
    if ((f & ONLY_LATER) && (f & ONLY_SOONER)) {
        reply_error(&c->reply, "ERR GT and LT options at the same time are not compatible");
        return false;
    }
    *ret = f;
    return true;
}

/* A key that never expires counts as later than any. */
static bool holds(int f, int64_t old, int64_t at)
{
    bool never = old == KEYSPACE_NEVER;
    return !((f & ONLY_NONE) && !never) && !((f & ONLY_SOME) && never) && !((f & ONLY_LATER) && (never || at <= old)) &&
           !((f & ONLY_SOONER) && !never && at >= old);
}

static void expire(struct conn *c, const struct request *rq, bool seconds, bool absolute, const char *command)
{
    const struct request_arg *key = &rq->argv[1];
    struct expiry_time t = {.seconds = seconds, .absolute = absolute};
    int64_t now = unix_ms(), at, old;
    int f;
    if (!conditions(c, rq, &f) || !want_i64(c, &rq->argv[2], &t.value) || !unix_time(c, &t, now, command, &at))
        return;
    struct keyspace *k = c->space->keys;
    old = keyspace_expiry(k, key->p, key->n);
    bool past = at <= now;
    int64_t mono = past ? 1 : keyspace_now(k) + (at - now);
    if (old < 0 || !holds(f, old, mono)) {
        reply_int(&c->reply, 0);
        return;
    }
    int rc = 0;
    if (past)
        keyspace_delete(k, key->p, key->n);
    else
        rc = keyspace_expire(k, key->p, key->n, mono);
    if (rc < 0)
        say_failure(c, rc);
    else
        reply_int(&c->reply, 1);
}

void command_expire(struct conn *c, const struct request *rq)
{
    expire(c, rq, true, false, "expire");
}

void command_pexpire(struct conn *c, const struct request *rq)
{
    expire(c, rq, false, false, "pexpire");
}

void command_expireat(struct conn *c, const struct request *rq)
{
    expire(c, rq, true, true, "expireat");
}

void command_pexpireat(struct conn *c, const struct request *rq)
{
    expire(c, rq, false, true, "pexpireat");
}

void command_persist(struct conn *c, const struct request *rq)
{
    const struct request_arg *key = &rq->argv[1];
    bool had = keyspace_expiry(c->space->keys, key->p, key->n) > 0;
    if (had)
        keyspace_expire(c->space->keys, key->p, key->n, KEYSPACE_NEVER);
    reply_int(&c->reply, had);
}

/* --- how long still */

static void tell_time(struct conn *c, const struct request_arg *key, bool seconds, bool absolute)
{
    int64_t at = keyspace_expiry(c->space->keys, key->p, key->n);
    if (at <= 0) {
        reply_int(&c->reply, at == KEYSPACE_NEVER ? -1 : -2);
        return;
    }
    int64_t ms = at - keyspace_now(c->space->keys);
    if (absolute)
        ms += unix_ms();
    reply_int(&c->reply, seconds ? (ms + 500) / 1000 : ms);
}

void command_ttl(struct conn *c, const struct request *rq)
{
    tell_time(c, &rq->argv[1], true, false);
}

void command_pttl(struct conn *c, const struct request *rq)
{
    tell_time(c, &rq->argv[1], false, false);
}

void command_expiretime(struct conn *c, const struct request *rq)
{
    tell_time(c, &rq->argv[1], true, true);
}

void command_pexpiretime(struct conn *c, const struct request *rq)
{
    tell_time(c, &rq->argv[1], false, true);
}
