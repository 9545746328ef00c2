#include "common/rdzv/leader/rdzv_host.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/array.h"
#include "common/base/err.h"
#include "common/rdzv/leader/presence.h"
#include "common/rdzv/leader/rdzv_host_impl.h"
#include "common/rdzv/wire/rdzv_wire.h"

enum {
    WHOLE_BYTES = 1 << 20, /* of decisions before one says everything again */
    LAG_SLACK_MS = 2000,   /* a Redis looks at its replicas' lag once a second; and the kill's second */
    LINGER_MS = 2000,      /* after the end: for those who have not seen it */
};

int64_t host_now(const struct rdzv_host *h)
{
    return h->home->ops->now(h->home);
}

int64_t host_hold_ms(const struct rdzv_host *h)
{
    const struct rdzv_config *c = &h->o->job;
    int64_t lag = h->home->ops->lag_ms ? h->home->ops->lag_ms(h->home) : 0;
    int64_t bound = c->silence_ms + c->kill_ms, lagged = lag + c->silence_ms + LAG_SLACK_MS;
    return lag > 0 && lagged > bound ? lagged : bound;
}

/* --- the beginning of a reign */

/* "@reign ...", the first line of each decision; that of a claim stands alone. */
static int reign_line(const struct rdzv_host *h, bool claim, struct buf *out)
{
    TRY(buf_addstr(out, "@reign"));
    TRY(rdzv_field_text(out, "epoch", h->epoch));
    TRY(rdzv_field_text(out, "holder", h->o->node));
    TRY(rdzv_field_text(out, "home", h->identity));
    if (claim)
        TRY(rdzv_field_int(out, "claim", 1));
    return buf_add(out, "\n", 1);
}

static int claim(struct rdzv_host *h, const char *seen, struct err *e)
{
    struct buf record = {0};
    char mark[RDZV_MARK_LEN + 1];
    rdzv_home_mark(h->identity, mark);
    snprintf(h->epoch, sizeof h->epoch, "%llu-%016" PRIx64 "-%s", strtoull(seen, NULL, 10) + 1,
             h->o->random(h->o->random_arg), mark);
    int rc = reign_line(h, true, &record);
    rc = rc ? rc : h->home->ops->claim(h->home, seen, h->epoch, &record, e);
    buf_free(&record);
    return rc;
}

/* Only a decision shows that a reign has waited out what its home may have lost. A claim without one, in another
 * incarnation of the home, may have been followed by decisions that were lost. */
static void note_identity(struct rdzv_host *h, const char *p, size_t n)
{
    char word[2], home[RDZV_IDENTITY_MAX + 1] = "";
    if (rdzv_field_find(p, n, "home", home, sizeof home) != 1)
        return;
    bool decision = rdzv_field_find(p, n, "claim", word, sizeof word) == 0;
    if (decision)
        memcpy(h->former_identity, home, sizeof home);
    h->lost = !decision && (h->lost || strcmp(home, h->identity) != 0);
}

static int replay(struct rdzv_host *h, const struct buf *log, struct err *e)
{
    static const char reign[] = "@reign ";
    const char *p = log->data ? log->data : "", *end = p + log->len;
    if (log->len > 2 && (p[0] == 'T' || p[0] == 'D') && p[1] == ' ')
        return err_set(e, ERR_CORRUPT,
                       "the decisions there were written by an older crun (format 1), and this one reads format %d: "
                       "choose another --rdzv-id, or wait until they are gone",
                       LEADER_FORMAT);
    for (const char *at = p, *nl; at < end; at = nl ? nl + 1 : end) {
        nl = memchr(at, '\n', (size_t)(end - at));
        size_t n = (size_t)((nl ? nl : end) - at);
        if (n >= sizeof reign && memcmp(at, reign, sizeof reign - 1) == 0)
            note_identity(h, at + sizeof reign - 1, n - (sizeof reign - 1));
    }
    int rc = leader_replay(h->leader, p, log->len, host_now(h), e);
    rc = rc ? rc : leader_restore(h->leader, host_now(h), e);
    return rc < 0 && e ? err_wrap(e, "decision log") : rc;
}

static int take_over(struct rdzv_host *h, struct err *e)
{
    struct buf log = {0};
    buf_init(&log, (size_t)1 << 30);
    int rc = h->home->ops->load(h->home, &log, e);
    rc = rc ? rc : replay(h, &log, e);
    buf_free(&log);
    bool other = h->former_identity[0] ? strcmp(h->former_identity, h->identity) != 0 : h->o->was_member;
    bool lost = h->lost || other;
    if (rc == 0 && lost)
        leader_hold(h->leader, host_now(h) + host_hold_ms(h));
    return rc;
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

/* The slots of all that are told or answered something. */
static int write_slots(struct rdzv_host *h, struct slots *s)
{
    struct leader_member *m;
    while ((m = leader_next_fresh(h->leader))) {
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
    struct buf decision = {0};
    struct slots slots = {0};
    if (!leader_undecided(h->leader) || host_now(h) < leader_held_until(h->leader))
        return 1; /* a decision says that what may be lost was waited for */
    bool whole = h->logged > WHOLE_BYTES || (leader_begins(h->leader) && h->former_identity[0]);
    int rc = reign_line(h, false, &decision);
    rc = rc ? rc : leader_decide(h->leader, host_now(h), whole, &decision, e);
    rc = rc ? rc : write_slots(h, &slots);
    const struct rdzv_write w = {.decision = &decision,
                                 .slots = slots.v,
                                 .slot_count = slots.n,
                                 .whole = whole,
                                 .over = leader_is_over(h->leader)};
    rc = rc < 0 ? err_set(e, rc, "no memory for a decision") : h->home->ops->append(h->home, &w, e);
    h->logged = whole ? 0 : h->logged + decision.len;
    h->next_pulse = 0; /* progress shows at once */
    buf_free(&decision);
    free_slots(&slots);
    return rc;
}

/* --- the pulse */

static int pulse_text(struct rdzv_host *h, bool released, struct buf *out)
{
    struct rdzv *machine = leader_machine(h->leader);
    struct presence p;
    TRY(rdzv_field_text(out, "epoch", h->epoch));
    TRY(rdzv_field_int(out, "n", (long long)++h->pulses));
    TRY(rdzv_field_int(out, "free", released));
    if (!machine)
        return 0;
    presence_look(machine, leader_config(h->leader), host_now(h), &p);
    return presence_record(&p, out);
}

static int pulse(struct rdzv_host *h, bool released, struct err *e)
{
    struct buf text = {0};
    int rc = pulse_text(h, released, &text);
    rc = rc ? rc : h->home->ops->pulse(h->home, &text, e);
    buf_free(&text);
    h->next_pulse = host_now(h) + h->o->heartbeat_ms;
    return rc;
}

/* --- looking */

/* Whose beat is there. */
static void mark(void *arg, const char *node, const char *text, size_t n)
{
    struct rdzv_host *h = arg;
    struct leader_member *m = leader_find(h->leader, node);
    (void)text;
    (void)n;
    if (m)
        m->looked = h->looks;
}

/* A node that is done with its job takes its beat away: it has no workers. Said only of jobs that are over, where a
 * mistake breaks nothing. */
static void notice_departed(struct rdzv_host *h, uint64_t misses)
{
    bool over = leader_is_over(h->leader);
    for (struct leader_member *m = leader_members(h->leader), *next; m; m = next) {
        next = m->hh.next;
        if ((m->elder || (over && m->known)) && !m->gone && m->looked + misses < h->looks)
            leader_step(h->leader, &(struct leader_event){.kind = LEADER_GONE, .node = m->node}, host_now(h), NULL);
    }
}

/* The members of a job that is over may all have gone: know it before anybody asks. */
static int look_first(struct rdzv_host *h, struct err *e)
{
    h->looks = 1;
    TRY(h->home->ops->beats(h->home, true, mark, h, e));
    notice_departed(h, 0);
    return 0;
}

static int look(struct rdzv_host *h, struct err *e)
{
    int64_t began = host_now(h);
    h->all = began >= h->next_look;
    if (h->all && h->looks == 0 && leader_is_over(h->leader))
        TRY(look_first(h, e));
    h->looks += h->all;
    TRY(h->home->ops->beats(h->home, h->all, host_visit, h, e));
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
    int64_t over = leader_over_since(h->leader), now = host_now(h);
    return over && now - over >= LINGER_MS && now >= leader_held_until(h->leader) + LINGER_MS;
}

static int64_t patience(const struct rdzv_host *h)
{
    int64_t now = host_now(h), until = h->next_pulse < h->next_look ? h->next_pulse : h->next_look;
    int64_t due = leader_deadline(h->leader);
    until = due < until ? due : until;
    return until > now ? until - now : 0;
}

/* One turn. 1: go on; 0: another one leads. */
static int turn(struct rdzv_host *h, struct err *e)
{
    int rc = look(h, e);
    if (rc != 0)
        return rc < 0 ? rc : 0;
    leader_step(h->leader, &(struct leader_event){.kind = LEADER_TICK, .seen_ms = h->looked_ms}, host_now(h), NULL);
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
        TRY(h->home->ops->wait_calls(h->home, patience(h), e));
    }
    return pulse(h, true, e) == 0 ? 1 : 0;
}

int rdzv_host_lead(struct rdzv_home *home, const struct rdzv_host_options *o, const char *seen, struct err *e)
{
    struct rdzv_host h = {.home = home, .o = o, .e = e};
    int rc = leader_create(&h.leader, &(struct leader_options){.looked_for = true}, e);
    rc = rc ? rc : home->ops->identity(home, h.identity, e);
    rc = rc ? rc : claim(&h, seen, e);
    if (rc == 1) {
        rc = take_over(&h, e);
        rc = rc ? rc : reign(&h, e);
    } else if (rc == 0)
        rc = 1; /* somebody was faster */
    leader_destroy(h.leader);
    return rc;
}

int rdzv_host_read(struct rdzv_home *home, struct leader **ret, struct err *e)
{
    static const struct rdzv_host_options none = {.node = ""};
    struct rdzv_host h = {.home = home, .o = &none};
    struct buf log = {0};
    int rc = leader_create(&h.leader, &(struct leader_options){.looked_for = true}, e);
    rc = rc ? rc : home->ops->load(home, &log, e);
    rc = rc ? rc : replay(&h, &log, e);
    buf_free(&log);
    if (rc == 0 && !leader_machine(h.leader))
        rc = err_set(e, -ENOENT, "no job of this run id is known there");
    if (rc == 0)
        *ret = h.leader;
    else
        leader_destroy(h.leader);
    return rc;
}
