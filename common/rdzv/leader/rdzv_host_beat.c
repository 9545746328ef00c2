/* What a node's beat makes of the job: its requests, in order and once each; its place; its life. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "common/job/exitcode.h"
#include "common/net/addr.h"
#include "common/rdzv/leader/rdzv_host_impl.h"
#include "common/rdzv/wire/rdzv_wire.h"

struct beat {
    char inc[20], instance[20], epoch[RDZV_EPOCH_MAX + 1];
    uint64_t n, q, told, seen;
    int restarts;
    bool bye;
    const char *requests, *end; /* lines */
};

static uint64_t number(const char *p, size_t n, const char *key)
{
    char text[24] = "";
    return rdzv_field_find(p, n, key, text, sizeof text) == 1 ? strtoull(text, NULL, 10) : 0;
}

static int decode(const char *p, size_t n, struct beat *ret)
{
    const char *stop = memchr(p, '\n', n);
    size_t len = stop ? (size_t)(stop - p) : n;
    *ret = (struct beat){.requests = stop ? stop + 1 : p + n, .end = p + n};
    TRY(rdzv_field_find(p, len, "inc", ret->inc, sizeof ret->inc));
    TRY(rdzv_field_find(p, len, "instance", ret->instance, sizeof ret->instance));
    TRY(rdzv_field_find(p, len, "epoch", ret->epoch, sizeof ret->epoch));
    ret->n = number(p, len, "n");
    ret->q = number(p, len, "q");
    ret->told = number(p, len, "told");
    ret->seen = number(p, len, "seen");
    ret->restarts = (int)number(p, len, "restarts");
    ret->bye = number(p, len, "bye") != 0;
    return ret->inc[0] ? 0 : -EPROTO;
}

/* --- telling */

static void tell(struct peer *p, const struct rdzv_news *news)
{
    p->news = *news;
    p->news.seq = ++p->seq;
    p->has_news = true;
    p->dirty = p->loud = true;
}

struct leader {
    bool remote; /* some member is not on loopback */
    const char *addrs;
};

static int look_for_leader(void *arg, const struct rdzv_member *m)
{
    struct leader *l = arg;
    l->remote |= m->member && !addr_host_is_loopback(m->addr);
    if (m->group_rank == 0 && m->member)
        l->addrs = m->addrs;
    return 0;
}

/* A leader known by its loopback address is out of other hosts' reach: take another of its addresses. */
static void reachable_leader(struct rdzv_host *h, const struct leader *l, struct rdzv_news *news)
{
    (void)h;
    if (!l->remote || !l->addrs || !addr_host_is_loopback(news->leader_addr))
        return;
    for (const char *p = l->addrs; *p; p += strcspn(p, ","), p += *p == ',') {
        char one[RDZV_ADDR_MAX + 1];
        size_t n = strcspn(p, ",");
        if (n >= sizeof one)
            continue;
        memcpy(one, p, n);
        one[n] = 0;
        if (one[0] && !addr_host_is_loopback(one)) {
            memcpy(news->leader_addr, one, sizeof one);
            return;
        }
    }
}

void host_keep_end(struct rdzv_host *h, const struct rdzv_news *news)
{
    h->ended = true;
    h->end = *news;
    h->end.group_rank = -1;
    h->end.group_world = 0;
    h->end.leader_addr[0] = 0;
    h->end.leader_port = 0;
}

static void spread_news(struct rdzv_host *h)
{
    struct leader l = {0};
    if (h->fx.n > 0)
        rdzv_members(h->machine, look_for_leader, &l);
    for (size_t i = 0; i < h->fx.n; i++) {
        struct rdzv_news *news = &h->fx.v[i].news;
        struct peer *p = host_peer(h, h->fx.v[i].node);
        if (!p)
            continue;
        reachable_leader(h, &l, news);
        tell(p, news);
        if (news->kind == RDZV_NEWS_END && host_is_over(h))
            host_keep_end(h, news);
    }
}

/* News of a node that the machine has forgotten are no longer true, but an END. */
static void forget_stale_news(struct rdzv_host *h)
{
    for (struct peer *p = h->peers; p; p = p->hh.next)
        if (p->has_news && p->news.kind != RDZV_NEWS_END && !rdzv_knows(h->machine, p->node)) {
            p->has_news = false;
            p->silent = false;
        }
}

int host_step(struct rdzv_host *h, const struct rdzv_event *ev, int64_t now, struct err *e)
{
    int before = rdzv_nodes(h->machine);
    int rc = rdzv_step(h->machine, ev, now, &h->fx, e);
    if (rc < 0)
        return rc;
    h->changed = true;
    host_note_end(h);
    spread_news(h);
    if (rdzv_nodes(h->machine) < before + (ev->kind == RDZV_JOIN))
        forget_stale_news(h);
    return 0;
}

/* --- requests */

static void answer(struct peer *p, enum rdzv_answer a, const struct err *e)
{
    p->answer = a;
    snprintf(p->text, sizeof p->text, "%.399s", a == ANSWER_OK || !e ? "" : e->text);
    p->dirty = true;
    p->loud |= a != ANSWER_OK || p->has_news; /* news that wait for this answer to be believed */
}

/* An address goes into lines of text and to other nodes' workers. */
static int check_addresses(const struct rdzv_event *ev, struct err *e)
{
    const char *const all[] = {ev->addr, ev->addrs};
    for (int i = 0; i < 2; i++)
        for (const char *c = all[i]; *c; c++)
            if ((unsigned char)*c <= ' ' || *c == 0x7f)
                return err_set(e, ERR_REFUSED, "JOIN of node '%s': an address holds a byte of code %d", ev->node, *c);
    return 0;
}

/* Take up what nodes were told by others than us. */
static void raise_floors(struct rdzv_host *h, int64_t now)
{
    if (h->machine && (h->raised_round > rdzv_round(h->machine) || h->raised_restarts > rdzv_restarts(h->machine)) &&
        rdzv_raise(h->machine, h->raised_round, h->raised_restarts, now, NULL) == 0)
        h->changed = true;
}

static int new_instance(struct rdzv_host *h, const struct rdzv_config *c, struct err *e)
{
    snprintf(h->instance, sizeof h->instance, "%016" PRIx64, h->o->random(h->o->random_arg));
    h->created = true;
    TRY(host_begin_job(h, c, e));
    h->over_since = 0;
    raise_floors(h, h->home->ops->now(h->home));
    return 0;
}

/* It has been told of the job that the log speaks of: one that was told of none had no part in it. */
static bool was_told_of(const struct rdzv_host *h, const struct beat *b)
{
    return b->instance[0] && strcmp(b->instance, h->instance) == 0;
}

/* A JOIN begins a new job where there is none, or where the one that is over is not the asker's. */
static int admit_join(struct rdzv_host *h, const struct beat *b, const struct rdzv_event *ev, const char *line,
                      size_t n, struct err *e)
{
    struct rdzv_config theirs;
    rdzv_config_defaults(&theirs);
    TRY(rdzv_config_decode(line, n, &theirs, e));
    TRY(check_addresses(ev, e));
    bool theirs_ended = host_is_over(h) && !was_told_of(h, b);
    if (!h->machine || theirs_ended)
        TRY(new_instance(h, &theirs, e));
    int rc = rdzv_config_differs(&h->config, &theirs, e);
    return rc < 0 ? ERR_MISMATCH : 0;
}

static void tell_end(struct rdzv_host *h, struct peer *p, const struct rdzv_event *ev)
{
    const struct rdzv_news left = {
        .kind = RDZV_NEWS_END, .round = ev->round, .exit_code = EXIT_REQUEUE, .cause.rank = -1};
    bool over = host_is_over(h) && h->ended;
    if (p->has_news && p->news.kind == RDZV_NEWS_END)
        p->dirty = true; /* said already */
    else
        tell(p, over ? &h->end : &left);
    answer(p, ANSWER_OK, NULL);
}

static void refused(struct rdzv_host *h, struct peer *p, const struct rdzv_event *ev, const struct err *e)
{
    bool known = rdzv_knows(h->machine, p->node);
    if (host_is_over(h) || (!known && ev->kind == RDZV_LEAVE))
        tell_end(h, p, ev);
    else if (!known && ev->kind == RDZV_JOIN)
        answer(p, ANSWER_REFUSED, e);
    else
        answer(p, known ? ANSWER_OK : ANSWER_UNKNOWN, e);
}

static void resume(struct rdzv_host *h, struct peer *p, int64_t now)
{
    struct rdzv_event ev = {.kind = RDZV_RESUME};
    if (!p->silent)
        return;
    p->silent = false;
    memcpy(ev.node, p->node, sizeof ev.node);
    host_step(h, &ev, now, NULL);
}

static uint64_t log_round(const struct rdzv_host *h)
{
    return h->machine ? rdzv_round(h->machine) : 0;
}

/* Members of the job that is over may still work for as long as their leases run, unless all have cleared up and
 * gone. */
static bool too_early(struct rdzv_host *h, const struct beat *b, int64_t now)
{
    int64_t bound = h->over_since + h->config.silence_ms + h->config.kill_ms;
    if (!host_is_over(h) || was_told_of(h, b) || now >= bound)
        return false;
    for (const struct peer *p = h->peers; p; p = p->hh.next)
        if (rdzv_knows(h->machine, p->node) && p->looked + 1 >= h->looks) {
            h->hold_until = bound;
            return true;
        }
    return false;
}

static void request(struct rdzv_host *h, struct peer *p, const struct beat *b, const char *line, size_t n)
{
    struct rdzv_event ev;
    struct err e = {0};
    uint64_t q = number(line, n, "q");
    int64_t now = h->home->ops->now(h->home);
    if (q <= p->q)
        return;
    int rc = rdzv_event_decode(line, n, &ev, &e);
    if (rc == 0 && ev.kind == RDZV_JOIN && too_early(h, b, now))
        return; /* it goes on asking */
    p->q = q;
    memcpy(ev.node, p->node, sizeof ev.node);
    if (!HOST_SOUND(5) && ev.kind == RDZV_JOIN && ev.round > log_round(h))
        ev.round = log_round(h);
    if (rc == 0 && ev.kind == RDZV_JOIN)
        rc = admit_join(h, b, &ev, line, n, &e);
    if (rc < 0) {
        answer(p, rc == ERR_MISMATCH ? ANSWER_DIFFERS : ANSWER_REFUSED, &e);
        return;
    }
    if (!h->machine) {
        answer(p, ANSWER_UNKNOWN, NULL);
        return;
    }
    rc = host_step(h, &ev, now, &e);
    if (rc == 0 || rc == ERR_FENCED)
        answer(p, rc ? ANSWER_FENCED : ANSWER_OK, &e);
    else
        refused(h, p, &ev, &e);
}

/* --- the beat */

/* Another life under this id: what was answered to the one before is none of its business. */
static void begin_life(struct peer *p, const struct beat *b)
{
    if (strcmp(p->inc, b->inc) == 0)
        return;
    memcpy(p->inc, b->inc, sizeof p->inc);
    p->n = p->q = 0;
    p->answer = ANSWER_OK;
    p->text[0] = 0;
    p->has_news = false;
}

/* A node without a place that asks for none: it is told so, once for each request it has made. */
static void check_place(struct rdzv_host *h, struct peer *p, const struct beat *b)
{
    if ((h->machine && rdzv_knows(h->machine, p->node)) || (p->has_news && p->news.kind == RDZV_NEWS_END) || b->q == 0)
        return;
    bool answered = p->q >= b->q && p->answer != ANSWER_OK && p->answer != ANSWER_FENCED;
    if (answered)
        return;
    p->q = b->q;
    if (host_is_over(h) && h->ended && was_told_of(h, b))
        tell_end(h, p, &(struct rdzv_event){.round = b->told});
    else
        answer(p, ANSWER_UNKNOWN, NULL);
}

static void depart(struct rdzv_host *h, struct peer *p, int64_t now)
{
    struct rdzv_event ev = {.kind = RDZV_GONE, .cause = {.exit_code = EXIT_UNAVAILABLE, .rank = -1}};
    memcpy(ev.node, p->node, sizeof ev.node);
    snprintf(ev.cause.text, sizeof ev.cause.text, "node '%s' has gone", p->node);
    if (h->machine && rdzv_knows(h->machine, p->node))
        host_step(h, &ev, now, NULL);
}

static uint64_t oldest_request(const struct beat *b)
{
    const char *stop = memchr(b->requests, '\n', (size_t)(b->end - b->requests));
    return number(b->requests, (size_t)((stop ? stop : b->end) - b->requests), "q");
}

/* A slot that its node seems not to have seen long after it was written. */
static void repair(struct rdzv_host *h, struct peer *p, const struct beat *b, int64_t now)
{
    struct buf text = {0};
    bool missed = (p->has_news && b->seen < p->news.seq) || (b->requests < b->end && oldest_request(b) <= p->q);
    if (p->dirty || !missed || now - p->written < h->o->heartbeat_ms + h->o->heartbeat_ms / 2)
        return;
    p->written = now;
    int rc = host_slot_text(h, p, &text);
    const struct rdzv_slot_write w = {p->node, text.data, text.len, false};
    rc = rc ? rc : h->home->ops->rewrite(h->home, &w, h->e);
    buf_free(&text);
    if (rc <= 0 && !h->failed)
        h->failed = rc == 0 ? 1 : rc;
}

static void requests(struct rdzv_host *h, struct peer *p, const struct beat *b)
{
    for (const char *line = b->requests; line < b->end && h->home->ops->now(h->home) >= h->hold_until;) {
        const char *stop = memchr(line, '\n', (size_t)(b->end - line));
        stop = stop ? stop : b->end;
        request(h, p, b, line, (size_t)(stop - line));
        line = stop + 1;
    }
}

/* What a node was told by a leader whose last decisions the home has lost. */
static void learn(struct rdzv_host *h, const struct beat *b, int64_t now)
{
    bool ours = strcmp(b->instance, h->instance) == 0 || h->hold_until;
    if (!ours || !HOST_SOUND(5) || (b->told <= h->raised_round && b->restarts <= h->raised_restarts))
        return;
    h->raised_round = b->told > h->raised_round ? b->told : h->raised_round;
    h->raised_restarts = b->restarts > h->raised_restarts ? b->restarts : h->raised_restarts;
    raise_floors(h, now);
}

/* A log without a past, and a node that has heeded an earlier reign or was part of a job: the home was emptied. What
 * else it forgot may still be at work. */
static void suspect_loss(struct rdzv_host *h, const struct beat *b, int64_t now)
{
    bool past = h->former_identity[0] || h->hold_until || (h->machine && rdzv_round(h->machine) > 0);
    bool heeded = b->epoch[0] && strcmp(b->epoch, h->epoch) != 0;
    bool member = b->told > 0 || (b->instance[0] && strcmp(b->instance, h->instance) != 0);
    if (past || (!heeded && !member) || !HOST_SOUND(6))
        return;
    h->hold_until = now + h->config.silence_ms + h->config.kill_ms;
}

void host_visit(void *arg, const char *node, const char *text, size_t n)
{
    struct rdzv_host *h = arg;
    struct beat b;
    struct peer *p;
    if (h->failed || decode(text, n, &b) < 0 || !(p = host_peer(h, node)))
        return;
    begin_life(p, &b);
    if (p->has_news && p->news.kind == RDZV_NEWS_END && b.seen > p->news.seq) {
        p->seq = b.seen; /* it has seen more than the home remembers: what is true now must look newer */
        tell(p, &p->news);
    }
    if (h->all)
        p->looked = h->looks;
    bool moved = b.n != p->n, promised = strcmp(b.epoch, h->epoch) == 0;
    int64_t now = h->home->ops->now(h->home);
    p->n = b.n;
    if (b.seen > p->seq)
        p->seq = b.seen;
    suspect_loss(h, &b, now);
    if (!moved || !promised)
        return;
    p->heard = now;
    learn(h, &b, now);
    if (now < h->hold_until)
        return;
    resume(h, p, now);
    requests(h, p, &b);
    if (b.bye)
        depart(h, p, now);
    else if (now >= h->hold_until) {
        check_place(h, p, &b);
        repair(h, p, &b, now);
    }
}
