#include "common/rdzv/leader/rdzv_host.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/array.h"
#include "common/base/err.h"
#include "common/rdzv/leader/presence.h"
#include "common/rdzv/leader/rdzv_host_impl.h"
#include "common/rdzv/wire/rdzv_wire.h"

enum {
    LAG_SLACK_MS = 2000, /* a Redis looks at its replicas' lag once a second; and the kill's second */
    LINGER_MS = 2000,    /* after the end: for those who have not seen it */
};

static int64_t now_there(const struct rdzv_reign *r)
{
    return r->home->ops->now(r->home);
}

int64_t host_now(const struct rdzv_host *h)
{
    return now_there(&h->r);
}

int64_t host_hold_ms(const struct rdzv_host *h)
{
    const struct rdzv_config *c = &h->o->job;
    int64_t lag = h->r.home->ops->lag_ms ? h->r.home->ops->lag_ms(h->r.home) : 0;
    int64_t bound = c->silence_ms + c->kill_ms, lagged = lag + c->silence_ms + LAG_SLACK_MS;
    return lag > 0 && lagged > bound ? lagged : bound;
}

/* --- the beginning of a reign */

static int take_over(struct rdzv_host *h, struct err *e)
{
    TRY(rdzv_reign_take_over(&h->r, now_there, e));
    if (rdzv_reign_has_loss(&h->r, h->o->was_member))
        leader_hold(h->r.leader, host_now(h) + host_hold_ms(h));
    return 0;
}

/* --- decisions */

struct slots {
    struct buf text; /* each ended by a NUL */
    struct rdzv_slot_write *v;
    size_t n, cap;
};

static void free_slots(struct slots *s)
{
    buf_free(&s->text);
    free(s->v);
}

/* The slots of all nodes that have news or an answer. */
static int write_slots(struct rdzv_host *h, struct slots *s)
{
    struct leader_member *m;
    while ((m = leader_next_fresh(h->r.leader))) {
        TRY(ARRAY_RESERVE(s->v, s->cap, s->n + 1));
        const size_t from = s->text.len;
        TRY(host_slot_text(h, m, &s->text));
        s->v[s->n++] = (struct rdzv_slot_write){
            .node = m->node, .len = s->text.len - from, .quiet = m->answer == ANSWER_OK && !m->has_news};
        m->written_ms = host_now(h);
        TRY(buf_add(&s->text, "", 1));
    }
    const char *text = s->text.data;
    for (size_t i = 0; i < s->n; text += s->v[i++].len + 1)
        s->v[i].text = text;
    return 0;
}

/* 1: it stands, or there is nothing to decide. 0: another one leads. */
static int decide(struct rdzv_host *h, struct err *e)
{
    struct slots slots = {0};
    if (!leader_undecided(h->r.leader) || host_now(h) < leader_held_until(h->r.leader))
        return 1; /* a decision says that what may be lost was waited for */
    int rc = write_slots(h, &slots);
    rc = rc < 0 ? err_set(e, rc, "no memory for a decision")
                : rdzv_reign_decide(&h->r, false, slots.v, slots.n, host_now(h), e);
    h->next_pulse = 0; /* progress shows at once */
    free_slots(&slots);
    return rc;
}

/* --- the pulse */

static int pulse_text(struct rdzv_host *h, bool released, struct buf *out)
{
    struct rdzv *machine = leader_machine(h->r.leader);
    struct presence p;
    TRY(rdzv_field_text(out, "epoch", h->r.epoch));
    TRY(rdzv_field_int(out, "n", (long long)++h->pulses));
    TRY(rdzv_field_int(out, "free", released));
    if (!machine)
        return 0;
    presence_look(machine, leader_config(h->r.leader), host_now(h), &p);
    return presence_record(&p, out);
}

static int pulse(struct rdzv_host *h, bool released, struct err *e)
{
    struct buf text = {0};
    int rc = pulse_text(h, released, &text);
    rc = rc ? rc : h->r.home->ops->pulse(h->r.home, &text, e);
    buf_free(&text);
    h->next_pulse = host_now(h) + h->o->heartbeat_ms;
    return rc;
}

/* --- looking */

/* Whose beat is there. */
static void mark(void *arg, const char *node, const char *text, size_t n)
{
    struct rdzv_host *h = arg;
    struct leader_member *m = leader_find(h->r.leader, node);
    (void)text;
    (void)n;
    if (m)
        m->looked = h->looks;
}

/* A node that is done with its job takes its beat away: it has no workers. Assumed only of jobs that are over, where a
 * mistake breaks nothing. */
static void notice_departed(struct rdzv_host *h, uint64_t misses)
{
    bool over = leader_is_over(h->r.leader);
    for (struct leader_member *m = leader_members(h->r.leader), *next; m; m = next) {
        next = m->hh.next;
        if ((m->elder || (over && m->known)) && !m->gone && m->looked + misses < h->looks)
            leader_step(h->r.leader, &(struct leader_event){.kind = LEADER_GONE, .node = m->node}, host_now(h), NULL);
    }
}

/* The members of a job that is over may all have gone: know it before anybody asks. */
static int look_first(struct rdzv_host *h, struct err *e)
{
    h->looks = 1;
    TRY(h->r.home->ops->beats(h->r.home, true, mark, h, e));
    notice_departed(h, 0);
    return 0;
}

static int look(struct rdzv_host *h, struct err *e)
{
    int64_t began = host_now(h);
    h->all = began >= h->next_look;
    if (h->all && h->looks == 0 && leader_is_over(h->r.leader))
        TRY(look_first(h, e));
    h->looks += h->all;
    TRY(h->r.home->ops->beats(h->r.home, h->all, host_visit, h, e));
    if (h->failed)
        return h->failed == 1 ? 1 : h->failed;
    if (!h->all)
        return 0;
    h->next_look = began + h->o->heartbeat_ms;
    h->looked_ms = began;
    notice_departed(h, 1);
    return 0;
}

/* --- the reign */

/* Everybody that takes part has seen the END, or has had time enough. */
static bool may_go(const struct rdzv_host *h)
{
    int64_t over = leader_over_since(h->r.leader), now = host_now(h);
    return over && now - over >= LINGER_MS && now >= leader_held_until(h->r.leader) + LINGER_MS;
}

static int64_t patience(const struct rdzv_host *h)
{
    int64_t now = host_now(h), until = h->next_pulse < h->next_look ? h->next_pulse : h->next_look;
    int64_t due = leader_deadline(h->r.leader);
    until = due < until ? due : until;
    return until > now ? until - now : 0;
}

/* One turn. 1: go on; 0: another one leads. */
static int turn(struct rdzv_host *h, struct err *e)
{
    int rc = look(h, e);
    if (rc != 0)
        return rc < 0 ? rc : 0;
    leader_step(h->r.leader, &(struct leader_event){.kind = LEADER_TICK, .seen_ms = h->looked_ms}, host_now(h), NULL);
    rc = decide(h, e);
    if (rc == 1 && host_now(h) >= h->next_pulse)
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
        TRY(h->r.home->ops->wait_calls(h->r.home, patience(h), e));
    }
    return pulse(h, true, e) == 0 ? 1 : 0;
}

int rdzv_host_lead(struct rdzv_home *home, const struct rdzv_host_options *o, const char *seen, struct err *e)
{
    struct rdzv_host h = {.r = {.home = home, .holder = o->node}, .o = o, .e = e};
    int rc = leader_create(&h.r.leader, &(struct leader_options){.looked_for = true}, e);
    rc = rc ? rc : home->ops->identity(home, h.r.identity, e);
    rc = rc ? rc : rdzv_reign_claim(&h.r, seen, o->random(o->random_arg), e);
    if (rc == 1) {
        rc = take_over(&h, e);
        rc = rc ? rc : reign(&h, e);
    } else if (rc == 0)
        rc = 1; /* somebody was faster */
    leader_destroy(h.r.leader);
    return rc;
}

int rdzv_host_read(struct rdzv_home *home, struct leader **ret, struct err *e)
{
    struct rdzv_reign r = {.home = home};
    int rc = leader_create(&r.leader, &(struct leader_options){.looked_for = true}, e);
    rc = rc ? rc : rdzv_reign_take_over(&r, now_there, e);
    if (rc == 0 && !leader_machine(r.leader))
        rc = err_set(e, -ENOENT, "no job of this run id is known there");
    if (rc == 0)
        *ret = r.leader;
    else
        leader_destroy(r.leader);
    return rc;
}
