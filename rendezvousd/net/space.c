/* A key-space and its waiters, and the server's one timer, which deletes expired keys that nobody asks for. */
#include "rendezvousd/net/server_impl.h"
#include <errno.h>
#include <stdlib.h>
#include <utlist.h>

#define EXPIRE_AT_ONCE 1000 /* keys of one space per turn, so that clients are served in between */

static void on_change(void *arg, enum key_change what, const char *key, size_t key_len)
{
    struct space *sp = arg;
    if (what == KEYS_CLEARED)
        waiters_cleared(sp->waiters);
    else if (what == KEY_DELETED)
        waiters_deleted(sp->waiters, key, key_len);
    else if (!sp->wake_one)
        waiters_created(sp->waiters, key, key_len);
}

int space_create(struct space **ret, struct server *s, size_t max_bytes)
{
    struct space *sp = calloc(1, sizeof *sp);
    if (!sp)
        return -ENOMEM;
    sp->refs = 1;
    sp->expiry_ms = INT64_MAX;
    if (keyspace_create(&sp->keys, max_bytes) < 0 || waiters_create(&sp->waiters, sp->keys, &s->remains) < 0) {
        space_release(sp);
        return -ENOMEM;
    }
    keyspace_share(sp->keys, &s->memory);
    keyspace_observe(sp->keys, on_change, sp);
    *ret = sp;
    return 0;
}

struct space *space_hold(struct space *sp)
{
    sp->refs++;
    return sp;
}

void space_release(struct space *sp)
{
    if (!sp || --sp->refs > 0)
        return;
    if (sp->expiring)
        DL_DELETE(sp->expiring->expiring, sp);
    waiters_destroy(sp->waiters);
    keyspace_destroy(sp->keys);
    free(sp);
}

/* --- keys that expire */

void space_tick(struct space *sp, const struct server *s)
{
    if (!sp->holder)
        keyspace_tick(sp->keys, (int64_t)uv_now(s->loop));
}

static void on_timer(uv_timer_t *t)
{
    struct server *s = t->data;
    space_expire(s);
    conn_drain_ready(s);
}

/* Set the timer. A key is gone one millisecond after its time. */
static void arm(struct server *s, int64_t at_ms)
{
    int64_t now = (int64_t)uv_now(s->loop);
    s->expiry_ms = at_ms;
    uv_timer_start(&s->expiry_timer, on_timer, at_ms < now ? 1 : (uint64_t)(at_ms - now) + 1, 0);
}

void space_expire(struct server *s)
{
    const int64_t now = (int64_t)uv_now(s->loop);
    int64_t next = INT64_MAX;
    struct space *sp, *following;
    s->expiry_ms = INT64_MAX;
    DL_FOREACH_SAFE(s->expiring, sp, following)
    {
        if (sp->expiry_ms <= now && !turn_over(s)) {
            space_tick(sp, s);
            keyspace_expire_due(sp->keys, EXPIRE_AT_ONCE);
            sp->expiry_ms = keyspace_next_expiry(sp->keys);
            DL_DELETE(s->expiring, sp);
            if (sp->expiry_ms < INT64_MAX)
                DL_APPEND(s->expiring, sp); /* behind spaces whose keys wait for the next turn */
            else
                sp->expiring = NULL;
        }
        next = sp->expiry_ms < next ? sp->expiry_ms : next;
    }
    if (next < INT64_MAX)
        arm(s, next);
}

static void expect_expiry(struct space *sp, struct server *s, int64_t at_ms)
{
    if (s->closing)
        return;
    if (!sp->expiring)
        DL_APPEND(s->expiring, sp);
    sp->expiring = s;
    sp->expiry_ms = at_ms;
    if (at_ms < s->expiry_ms)
        arm(s, at_ms);
}

void space_expect_expiry(struct space *sp, struct server *s)
{
    int64_t next = keyspace_next_expiry(sp->keys);
    if (next < sp->expiry_ms)
        expect_expiry(sp, s, next);
}
