#include "common/rdzv/leader/rdzv_host.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "common/rdzv/leader/rdzv_host_impl.h"

enum {
    WHOLE_BYTES = 1 << 20, /* of decisions before one says everything again */
    LINGER_MS = 2000,      /* after the end: for those who have not seen it */
};

static int64_t now_of(struct rdzv_host *h)
{
    return h->home->ops->now(h->home);
}

/* --- the beginning of a reign */

static int claim(struct rdzv_host *h, const char *seen, struct err *e)
{
    struct buf record = {0};
    snprintf(h->epoch, sizeof h->epoch, "%llu-%016" PRIx64, strtoull(seen, NULL, 10) + 1,
             h->o->random(h->o->random_arg));
    int rc = host_record_claim(h, &record);
    if (HOST_SOUND(2))
        rc = rc ? rc : h->home->ops->claim(h->home, seen, h->epoch, &record, e);
    else
        rc = 1;
    buf_free(&record);
    return rc;
}

static int take_over(struct rdzv_host *h, struct err *e)
{
    struct buf log = {0};
    buf_init(&log, (size_t)1 << 30);
    int rc = h->home->ops->load(h->home, &log, e);
    h->began = now_of(h);
    rc = rc ? rc : host_replay(h, log.data, log.len, e);
    for (struct peer *p = h->peers; p; p = p->hh.next)
        p->heard = p->written = h->began;
    host_note_end(h);
    bool lost = h->former_identity[0] ? strcmp(h->former_identity, h->identity) != 0 : h->o->was_member;
    if (lost && HOST_SOUND(6))
        h->hold_until = h->began + h->o->job.silence_ms + h->o->job.kill_ms;
    buf_free(&log);
    return rc;
}

/* --- decisions */

static bool anything_to_say(const struct rdzv_host *h)
{
    bool dirty = false;
    for (const struct peer *p = h->peers; p && !dirty; p = p->hh.next)
        dirty = p->dirty;
    return dirty || h->changed || h->created;
}

/* The texts of `slots`, each ended by a NUL, belong to the dirty peers in order. */
static size_t address_slots(struct rdzv_host *h, struct buf *slots, struct rdzv_slot_write *v)
{
    size_t n = 0;
    const char *text = slots->data;
    for (struct peer *p = h->peers; p; p = p->hh.next)
        if (p->dirty) {
            v[n] = (struct rdzv_slot_write){p->node, text, strlen(text), !p->loud};
            text += v[n++].len + 1;
        }
    return n;
}

static void settled(struct rdzv_host *h, size_t bytes, bool whole)
{
    for (struct peer *p = h->peers; p; p = p->hh.next) {
        if (p->dirty)
            p->written = now_of(h);
        p->dirty = p->loud = false;
    }
    h->logged = whole ? 0 : h->logged + bytes;
    h->changed = h->created = false;
    h->next_pulse = 0; /* progress shows at once */
}

static int append(struct rdzv_host *h, struct buf *decision, struct buf *slots, bool whole, struct err *e)
{
    struct rdzv_slot_write *v = calloc(HASH_COUNT(h->peers) + 1, sizeof *v);
    if (!v)
        return err_set(e, -ENOMEM, "no memory for a decision");
    struct rdzv_write w = {.decision = decision, .slots = v, .whole = whole, .over = host_is_over(h)};
    w.slot_count = address_slots(h, slots, v);
    int rc = h->home->ops->append(h->home, &w, e);
    free(v);
    if (rc == 1)
        settled(h, decision->len, whole);
    return rc;
}

/* 1: it stands, or there is nothing to decide. 0: another one leads. */
static int decide(struct rdzv_host *h, struct err *e)
{
    struct buf decision = {0}, slots = {0};
    bool whole = h->logged > WHOLE_BYTES || (h->created && h->former_identity[0]);
    if (!anything_to_say(h))
        return 1;
    int rc = host_record(h, whole, &decision, &slots, e);
    rc = rc ? rc : append(h, &decision, &slots, whole, e);
    buf_free(&decision);
    buf_free(&slots);
    return rc;
}

/* --- time */

static int pulse(struct rdzv_host *h, bool released, struct err *e)
{
    struct buf text = {0};
    int rc = host_pulse_text(h, released, &text);
    rc = rc ? rc : h->home->ops->pulse(h->home, &text, e);
    buf_free(&text);
    h->next_pulse = now_of(h) + h->o->heartbeat_ms;
    return rc;
}

/* Nodes whose beats stood still for the whole of silence_ms when we began to look. The machine counts from when they
 * last moved. */
static void notice_silence(struct rdzv_host *h, int64_t looked)
{
    for (struct peer *p = h->peers; p; p = p->hh.next) {
        int64_t bound = p->heard + (HOST_SOUND(4) ? h->config.silence_ms : h->config.silence_ms / 4);
        if (p->silent || looked < bound || !rdzv_knows(h->machine, p->node))
            continue;
        struct rdzv_event ev = {.kind = RDZV_SILENT};
        memcpy(ev.node, p->node, sizeof ev.node);
        if (host_step(h, &ev, HOST_SOUND(4) ? p->heard : p->heard - h->config.kill_ms, NULL) == 0)
            p->silent = true;
    }
}

/* Whose beat is there. */
static void mark(void *arg, const char *node, const char *text, size_t n)
{
    struct rdzv_host *h = arg;
    struct peer *p;
    (void)text;
    (void)n;
    HASH_FIND_STR(h->peers, node, p);
    if (p)
        p->looked = h->looks;
}

static int look(struct rdzv_host *h, struct err *e)
{
    int64_t began = now_of(h);
    bool all = began >= h->next_look;
    if (all && h->looks == 0 &&
        host_is_over(h)) { /* the members of a job that is over may all have gone: know it before anybody asks */
        h->looks = 1;
        TRY(h->home->ops->beats(h->home, true, mark, h, e));
    }
    h->looks += all;
    h->all = all;
    TRY(h->home->ops->beats(h->home, all, host_visit, h, e));
    if (h->failed)
        return h->failed == 1 ? 1 : h->failed;
    if (all) {
        h->next_look = began + h->o->heartbeat_ms;
        if (h->machine && began >= h->hold_until && !host_is_over(h))
            notice_silence(h, began);
    }
    return 0;
}

static void tick(struct rdzv_host *h)
{
    int64_t now = now_of(h);
    if (h->held && now >= h->hold_until)
        h->changed = true; /* what follows is a decision: the next reign need not wait again */
    h->held = now < h->hold_until;
    if (h->machine && now >= h->hold_until && rdzv_deadline(h->machine) <= now)
        host_step(h, &(struct rdzv_event){.kind = RDZV_TICK}, now, NULL);
}

/* Everybody that takes part has seen the END, or has had time enough. */
static bool may_go(struct rdzv_host *h)
{
    return h->over_since && now_of(h) - h->over_since >= LINGER_MS && now_of(h) >= h->hold_until + LINGER_MS;
}

static int64_t patience(struct rdzv_host *h)
{
    int64_t now = now_of(h), until = h->next_pulse < h->next_look ? h->next_pulse : h->next_look;
    int64_t due = h->machine ? rdzv_deadline(h->machine) : INT64_MAX;
    if (due < h->hold_until)
        due = h->hold_until;
    until = due < until ? due : until;
    return until > now ? until - now : 0;
}

/* --- the reign */

/* One turn. 1: go on; 0: another one leads. */
static int turn(struct rdzv_host *h, struct err *e)
{
    int rc = look(h, e);
    if (rc != 0)
        return rc < 0 ? rc : 0;
    tick(h);
    rc = decide(h, e);
    if (rc == 1 && now_of(h) >= h->next_pulse)
        rc = pulse(h, false, e);
    return rc;
}

static int reign(struct rdzv_host *h, struct err *e)
{
    for (;;) {
        int rc = turn(h, e);
        if (rc != 1)
            return rc < 0 ? rc : 1;
        if (atomic_load(h->o->stop) || may_go(h))
            break;
        TRY(h->home->ops->wait_calls(h->home, patience(h), e));
    }
    return pulse(h, true, e) == 0 ? 1 : 0;
}

static void finish(struct rdzv_host *h)
{
    struct peer *p, *next;
    HASH_ITER (hh, h->peers, p, next) {
        HASH_DEL(h->peers, p);
        free(p);
    }
    rdzv_effects_free(&h->fx);
    rdzv_destroy(h->machine);
}

int rdzv_host_lead(struct rdzv_home *home, const struct rdzv_host_options *o, const char *seen, struct err *e)
{
    struct rdzv_host h = {.home = home, .o = o, .config = o->job, .e = e};
    int rc = home->ops->identity(home, h.identity, e);
    rc = rc ? rc : claim(&h, seen, e);
    if (rc == 1) {
        rc = take_over(&h, e);
        rc = rc ? rc : reign(&h, e);
    } else if (rc == 0)
        rc = 1; /* somebody was faster */
    finish(&h);
    return rc;
}

int rdzv_host_read(struct rdzv_home *home, struct rdzv **ret, struct err *e)
{
    static const struct rdzv_host_options none = {.node = ""};
    struct rdzv_host h = {.home = home, .o = &none};
    struct buf log = {0};
    int rc = home->ops->load(home, &log, e);
    rc = rc ? rc : host_replay(&h, log.data, log.len, e);
    if (rc == 0 && !h.machine)
        rc = err_set(e, -ENOENT, "no job of this run id is known there");
    if (rc == 0) {
        *ret = h.machine;
        h.machine = NULL;
    }
    buf_free(&log);
    finish(&h);
    return rc;
}
