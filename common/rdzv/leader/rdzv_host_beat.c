/* What a node's beat makes of the job: its requests, in order and once each; its place; its life. */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "common/rdzv/leader/rdzv_host_impl.h"
#include "common/rdzv/wire/rdzv_wire.h"

struct beat {
    char inc[20], instance[20], epoch[RDZV_EPOCH_MAX + 1];
    uint64_t n, q, known_round, seen;
    int restarts;
    bool bye;
    const char *requests, *end; /* lines */
};

static uint64_t number(const char *p, size_t n, const char *key)
{
    return (uint64_t)rdzv_field_number(p, n, key, 0);
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
    ret->known_round = number(p, len, "told");
    ret->seen = number(p, len, "seen");
    ret->restarts = (int)number(p, len, "restarts");
    ret->bye = number(p, len, "bye") != 0;
    return ret->inc[0] ? 0 : -EPROTO;
}

int host_slot_text(struct rdzv_host *h, const struct leader_member *m, struct buf *out)
{
    struct rdzv_slot slot;
    struct buf news = {0}, members = {0};
    leader_answered(m, &slot);
    snprintf(slot.instance, sizeof slot.instance, "%s", leader_instance(h->r.leader));
    int rc = m->has_news ? rdzv_news_encode(&m->news, &news) : 0;
    if (rc == 0 && m->has_news && rdzv_news_is_for_leader(&m->news))
        rc = leader_addresses(h->r.leader, 0, INT_MAX, &members);
    slot.news = news.data;
    slot.news_len = news.len;
    slot.members = members.data;
    slot.members_len = members.len;
    rc = rc ? rc : rdzv_slot_encode(&slot, out);
    buf_free(&news);
    buf_free(&members);
    return rc;
}

/* --- requests */

static void answer(struct rdzv_host *h, struct leader_member *m, uint64_t q, enum rdzv_answer a, const struct err *e)
{
    leader_answer(h->r.leader, m, q, a, a == ANSWER_OK || !e ? "" : e->text);
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

static uint64_t log_round(const struct rdzv_host *h)
{
    struct rdzv *machine = leader_machine(h->r.leader);
    return machine ? rdzv_round(machine) : 0;
}

/* One request, put to the leader. */
static int ask(struct rdzv_host *h, const struct leader_member *m, const struct beat *b, const char *line, size_t n,
               struct rdzv_event *ret, struct err *e)
{
    struct rdzv_config settings;
    rdzv_config_defaults(&settings);
    TRY(rdzv_event_decode(line, n, ret, e));
    memcpy(ret->node, m->node, sizeof ret->node);
    if (ret->kind == RDZV_JOIN) {
        TRY(rdzv_config_decode(line, n, &settings, e));
        TRY(check_addresses(ret, e));
    }
    const struct leader_event ev = {.kind = LEADER_ASK,
                                    .ask = ret,
                                    .settings = &settings,
                                    .instance = b->instance,
                                    .draw = h->o->random(h->o->random_arg)};
    return leader_step(h->r.leader, &ev, host_now(h), e);
}

static void request(struct rdzv_host *h, struct leader_member *m, const struct beat *b, const char *line, size_t n)
{
    struct rdzv_event ev = {.kind = RDZV_TICK};
    struct err e = {0};
    uint64_t q = number(line, n, "q");
    if (q <= m->q)
        return;
    int rc = ask(h, m, b, line, n, &ev, &e);
    if (rc == -EAGAIN) { /* it goes on asking */
        h->deferred = true;
        return;
    }
    if (rc == ERR_REFUSED && m->known && ev.round > log_round(h))
        rc = ERR_FENCED; /* it speaks of a round that the home has lost: nobody else knows of it */
    if (rc == 0 || rc == ERR_FENCED)
        answer(h, m, q, rc ? ANSWER_FENCED : ANSWER_OK, &e);
    else if (rc == ERR_MISMATCH)
        answer(h, m, q, ANSWER_DIFFERS, &e);
    else if (rc != ERR_REFUSED || (ev.kind == RDZV_JOIN && !m->known))
        answer(h, m, q, ANSWER_REFUSED, &e);
    else if (ev.kind == RDZV_LEAVE && !m->known) {
        leader_remind_end(h->r.leader, m, ev.round);
        answer(h, m, q, ANSWER_OK, NULL);
    } else
        answer(h, m, q, m->known ? ANSWER_OK : ANSWER_UNKNOWN, &e);
}

static void requests(struct rdzv_host *h, struct leader_member *m, const struct beat *b)
{
    h->deferred = false;
    for (const char *line = b->requests; line < b->end && !h->deferred;) {
        const char *stop = memchr(line, '\n', (size_t)(b->end - line));
        stop = stop ? stop : b->end;
        request(h, m, b, line, (size_t)(stop - line));
        line = stop + 1;
    }
}

/* --- the beat */

/* A node without a place that asks for none: it is answered so, once for each request it has made. */
static void check_place(struct rdzv_host *h, struct leader_member *m, const struct beat *b)
{
    bool ended = m->has_news && m->news.kind == RDZV_NEWS_END;
    bool refused = m->q >= b->q && m->answer != ANSWER_OK && m->answer != ANSWER_FENCED;
    if (m->known || ended || refused || b->q == 0)
        return;
    bool its_job = b->instance[0] && strcmp(b->instance, leader_instance(h->r.leader)) == 0;
    if (leader_is_over(h->r.leader) && its_job)
        leader_remind_end(h->r.leader, m, b->known_round);
    answer(h, m, b->q, leader_is_over(h->r.leader) && its_job ? ANSWER_OK : ANSWER_UNKNOWN, NULL);
}

static uint64_t oldest_request(const struct beat *b)
{
    const char *stop = memchr(b->requests, '\n', (size_t)(b->end - b->requests));
    return number(b->requests, (size_t)((stop ? stop : b->end) - b->requests), "q");
}

/* A slot that its node seems not to have seen long after it was written. */
static void repair(struct rdzv_host *h, struct leader_member *m, const struct beat *b, int64_t now)
{
    struct buf text = {0};
    bool missed = (m->has_news && b->seen < m->news.seq) || (b->requests < b->end && oldest_request(b) <= m->q);
    if (m->fresh || !missed || now - m->written_ms < h->o->heartbeat_ms + h->o->heartbeat_ms / 2)
        return;
    m->written_ms = now;
    int rc = host_slot_text(h, m, &text);
    const struct rdzv_slot_write w = {m->node, text.data, text.len, false};
    rc = rc ? rc : h->r.home->ops->append(h->r.home, &(struct rdzv_write){.slots = &w, .slot_count = 1}, h->e);
    buf_free(&text);
    if (rc <= 0 && !h->failed)
        h->failed = rc == 0 ? 1 : rc;
}

/* A log without a past, and a node that has heeded an earlier reign or was part of a job: the home was emptied. What
 * else it forgot may still be at work. */
static void suspect_loss(struct rdzv_host *h, const struct beat *b, int64_t now)
{
    bool past = h->r.former_identity[0] || leader_held_until(h->r.leader) || log_round(h) > 0;
    bool heeded = b->epoch[0] && strcmp(b->epoch, h->r.epoch) != 0;
    bool member = b->known_round > 0 || (b->instance[0] && strcmp(b->instance, leader_instance(h->r.leader)) != 0);
    if (!past && (heeded || member))
        leader_hold(h->r.leader, now + host_hold_ms(h));
}

static void step(struct rdzv_host *h, enum leader_event_kind kind, const char *node, const struct beat *b)
{
    const struct leader_event ev = {.kind = kind,
                                    .node = node,
                                    .instance = b->instance,
                                    .seq = b->seen,
                                    .round = b->known_round,
                                    .restarts = b->restarts};
    leader_step(h->r.leader, &ev, host_now(h), NULL);
}

void host_visit(void *arg, const char *node, const char *text, size_t n)
{
    struct rdzv_host *h = arg;
    struct beat b;
    struct leader_member *m;
    if (h->failed || decode(text, n, &b) < 0 || !(m = leader_member_of(h->r.leader, node)))
        return;
    if (strcmp(m->inc, b.inc) != 0) {
        leader_new_life(h->r.leader, m, b.inc);
        m->beat = 0;
    }
    step(h, LEADER_SEEN, node, &b);
    if (h->all)
        m->looked = h->looks;
    bool moved = b.n != m->beat, promised = strcmp(b.epoch, h->r.epoch) == 0;
    int64_t now = host_now(h);
    m->beat = b.n;
    suspect_loss(h, &b, now);
    if (!moved || !promised)
        return;
    step(h, LEADER_LEARN, node, &b);
    step(h, LEADER_HEARD, node, &b);
    if (now < leader_held_until(h->r.leader))
        return;
    requests(h, m, &b);
    if (b.bye)
        step(h, LEADER_GONE, node, &b);
    else if (!h->deferred) {
        check_place(h, m, &b);
        repair(h, m, &b, now);
    }
}
