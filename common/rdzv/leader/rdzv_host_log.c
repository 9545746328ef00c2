/* Decisions as text. A decision is a header line, then blocks:
 *   T epoch=... holder=... home=... instance=      a reign begins (alone), and in which incarnation of the home
 *   D epoch=... holder=... home=... instance=...   who decided
 *   C <settings>                                   a new job begins, the instance of its D: forget what was before
 *   M <bytes>\n<rdzv_delta() or rdzv_snapshot()>   the machine
 *   S <bytes> <node>\n<slot>                       what a node was told
 * so that a log is simply its decisions one after the other. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "common/rdzv/leader/rdzv_host_impl.h"
#include "common/rdzv/wire/rdzv_wire.h"

bool host_is_over(const struct rdzv_host *h)
{
    enum rdzv_state s = h->machine ? rdzv_state(h->machine) : RDZV_JOINING;
    return s == RDZV_SUCCEEDED || s == RDZV_FAILED || s == RDZV_DRAINED;
}

void host_note_end(struct rdzv_host *h)
{
    if (!host_is_over(h))
        h->over_since = 0;
    else if (!h->over_since)
        h->over_since = h->home->ops->now(h->home);
}

struct peer *host_peer(struct rdzv_host *h, const char *node)
{
    struct peer *p;
    HASH_FIND_STR(h->peers, node, p);
    if (p || strlen(node) > RDZV_ID_MAX || !(p = calloc(1, sizeof *p)))
        return p;
    snprintf(p->node, sizeof p->node, "%s", node);
    p->heard = h->began;
    HASH_ADD_STR(h->peers, node, p);
    return p;
}

int host_begin_job(struct rdzv_host *h, const struct rdzv_config *c, struct err *e)
{
    rdzv_destroy(h->machine);
    h->machine = NULL;
    h->ended = false;
    h->config = *c;
    for (struct peer *p = h->peers; p; p = p->hh.next)
        p->silent = false;
    return rdzv_create(&h->machine, c, e);
}

/* --- writing */

static int record_head(struct rdzv_host *h, const char *mark, struct buf *out)
{
    TRY(buf_addstr(out, mark));
    struct buf line = {0};
    int rc = rdzv_field_text(&line, "epoch", h->epoch);
    rc = rc ? rc : rdzv_field_text(&line, "holder", h->o->node);
    rc = rc ? rc : rdzv_field_text(&line, "home", h->identity);
    rc = rc ? rc : rdzv_field_text(&line, "instance", h->instance);
    rc = rc ? rc : buf_printf(out, "%s\n", line.data);
    buf_free(&line);
    return rc;
}

int host_record_claim(struct rdzv_host *h, struct buf *out)
{
    return record_head(h, "T ", out);
}

struct gather {
    struct buf *out;
    int rc;
};

static int add_addresses(void *arg, const struct rdzv_member *m)
{
    struct gather *g = arg;
    if (m->member)
        g->rc = buf_printf(g->out, "%s%s%s%s", g->out->len ? "," : "", m->addr, m->addrs && *m->addrs ? "," : "",
                           m->addrs ? m->addrs : "");
    return g->rc;
}

int host_slot_text(struct rdzv_host *h, const struct peer *p, struct buf *out)
{
    struct rdzv_slot slot = {.q = p->q, .answer = p->answer};
    struct buf news = {0}, members = {0};
    struct gather g = {.out = &members};
    memcpy(slot.inc, p->inc, sizeof slot.inc);
    memcpy(slot.instance, h->instance, sizeof slot.instance);
    memcpy(slot.text, p->text, sizeof slot.text);
    int rc = p->has_news ? rdzv_news_encode(&p->news, &news) : 0;
    if (rc == 0 && p->has_news && rdzv_news_is_for_leader(&p->news)) {
        rdzv_members(h->machine, add_addresses, &g);
        rc = g.rc;
    }
    slot.news = news.data;
    slot.news_len = news.len;
    slot.members = members.data;
    slot.members_len = members.len;
    rc = rc ? rc : rdzv_slot_encode(&slot, out);
    buf_free(&news);
    buf_free(&members);
    return rc;
}

static int record_slots(struct rdzv_host *h, bool whole, struct buf *out, struct buf *slots)
{
    for (struct peer *p = h->peers; p; p = p->hh.next) {
        if (!p->dirty && !(whole && p->inc[0]))
            continue;
        size_t from = slots->len;
        TRY(host_slot_text(h, p, slots));
        TRY(buf_printf(out, "S %zu %s\n", slots->len - from, p->node));
        TRY(buf_add(out, slots->data + from, slots->len - from));
        if (p->dirty)
            TRY(buf_add(slots, "", 1)); /* a NUL ends each text that goes out */
        else
            slots->len = from;
    }
    return 0;
}

int host_record(struct rdzv_host *h, bool whole, struct buf *out, struct buf *slots, struct err *e)
{
    struct buf machine = {0};
    int rc = record_head(h, "D ", out);
    if (rc == 0 && (h->created || whole)) {
        rc = buf_addstr(out, "C ");
        struct buf line = {0};
        rc = rc ? rc : rdzv_config_encode(&h->config, &line);
        rc = rc ? rc : buf_printf(out, "%s\n", line.data);
        buf_free(&line);
    }
    if (rc == 0 && h->machine) {
        int64_t now = h->home->ops->now(h->home);
        rc = rdzv_delta(h->machine, now, &machine, e); /* also where the whole is said: the next delta begins here */
        if (rc == 0 && whole) {
            buf_clear(&machine);
            rc = rdzv_snapshot(h->machine, now, &machine, e);
        }
        rc = rc ? rc : buf_printf(out, "M %zu\n", machine.len);
        rc = rc ? rc : buf_add(out, machine.data, machine.len);
    }
    buf_free(&machine);
    rc = rc ? rc : record_slots(h, whole, out, slots);
    return rc < 0 ? err_set(e, rc, "no memory for a decision") : 0;
}

struct count {
    int joined;
    const struct rdzv_config *c;
    bool seen[256]; /* node ranks */
    bool numbered;
};

static int count_member(void *arg, const struct rdzv_member *m)
{
    struct count *c = arg;
    c->joined += m->ready && !m->silent;
    if (m->node_rank >= 0 && m->node_rank < 256)
        c->numbered = c->seen[m->node_rank] = true;
    return 0;
}

static void list_missing(const struct count *c, char out[64])
{
    size_t n = 0;
    for (int i = 0; c->numbered && i < c->c->max_nodes && i < 256 && n < 48; i++)
        if (!c->seen[i])
            n += (size_t)snprintf(out + n, 64 - n, "%s%d", n ? "," : "", i);
}

int host_pulse_text(struct rdzv_host *h, bool released, struct buf *out)
{
    struct count c = {.c = &h->config};
    char missing[64] = "";
    TRY(rdzv_field_text(out, "epoch", h->epoch));
    TRY(rdzv_field_int(out, "n", (long long)++h->pulses));
    TRY(rdzv_field_int(out, "free", released));
    if (!h->machine)
        return 0;
    rdzv_members(h->machine, count_member, &c);
    list_missing(&c, missing);
    TRY(rdzv_field_int(out, "state", (long long)rdzv_state(h->machine)));
    TRY(rdzv_field_int(out, "joined", c.joined));
    TRY(rdzv_field_int(out, "min", h->config.min_nodes));
    TRY(rdzv_field_int(out, "max", h->config.max_nodes));
    return rdzv_field_text(out, "missing", missing);
}

/* --- reading */

struct reader {
    const char *p, *end;
};

/* The next line; its end is put behind. */
static bool take_line(struct reader *r, const char **ret, size_t *ret_len)
{
    const char *stop = r->p < r->end ? memchr(r->p, '\n', (size_t)(r->end - r->p)) : NULL;
    if (!stop)
        return false;
    *ret = r->p;
    *ret_len = (size_t)(stop - r->p);
    r->p = stop + 1;
    return true;
}

static int take_block(struct reader *r, const char *size, const char **ret, size_t *ret_len, char **rest, struct err *e)
{
    unsigned long long n = strtoull(size, rest, 10);
    if (*rest == size || n > (unsigned long long)(r->end - r->p))
        return err_set(e, ERR_CORRUPT, "decision log: a block of %.20s bytes where %zu are left", size,
                       (size_t)(r->end - r->p));
    *ret = r->p;
    *ret_len = (size_t)n;
    r->p += n;
    return 0;
}

/* Only a decision shows that a reign has waited out what its home may have lost; a claim alone does not. */
static int replay_decision(struct rdzv_host *h, const char *p, size_t n)
{
    char instance[20] = "";
    TRY(rdzv_field_find(p, n, "instance", instance, sizeof instance));
    TRY(rdzv_field_find(p, n, "home", h->former_identity, sizeof h->former_identity));
    if (instance[0])
        snprintf(h->instance, sizeof h->instance, "%s", instance);
    return 0;
}

static int replay_slot(struct rdzv_host *h, const char *node, const char *p, size_t n, struct err *e)
{
    struct rdzv_slot slot;
    struct peer *peer = host_peer(h, node);
    if (!peer)
        return err_set(e, -ENOMEM, "no memory for node '%s'", node);
    TRY(rdzv_slot_decode(p, n, &slot, e));
    memcpy(peer->inc, slot.inc, sizeof peer->inc);
    memcpy(peer->text, slot.text, sizeof peer->text);
    peer->q = slot.q;
    peer->answer = slot.answer;
    peer->has_news = slot.news_len > 0;
    if (peer->has_news)
        TRY(rdzv_news_decode(slot.news, slot.news_len, &peer->news, e));
    peer->seq = peer->has_news && peer->news.seq > peer->seq ? peer->news.seq : peer->seq;
    return 0;
}

static int replay_line(struct rdzv_host *h, struct reader *r, char *line, size_t len, struct err *e)
{
    const char *block = NULL;
    char *rest;
    size_t n = 0;
    struct rdzv_config c;
    switch (line[0]) {
    case 'T':
        return 0;
    case 'D':
        return replay_decision(h, line + 2, len - 2);
    case 'C':
        rdzv_config_defaults(&c);
        TRY(rdzv_config_decode(line + 2, len - 2, &c, e));
        return host_begin_job(h, &c, e);
    case 'M':
        TRY(take_block(r, line + 2, &block, &n, &rest, e));
        if (!h->machine)
            return err_set(e, ERR_CORRUPT, "decision log: a machine's state before its settings");
        return rdzv_replay(h->machine, block, n, h->home->ops->now(h->home), e);
    case 'S':
        TRY(take_block(r, line + 2, &block, &n, &rest, e));
        return replay_slot(h, rest + (*rest == ' '), block, n, e);
    default:
        return err_set(e, ERR_CORRUPT, "decision log: a line begins with '%c'", line[0]);
    }
}

int host_replay(struct rdzv_host *h, const char *text, size_t n, struct err *e)
{
    struct reader r = {.p = text, .end = text + n};
    const char *p;
    size_t len;
    while (r.p < r.end) {
        if (!take_line(&r, &p, &len) || len < 2)
            return err_set(e, ERR_CORRUPT, "decision log: it ends within a line");
        char *line = strndup(p, len);
        if (!line)
            return err_set(e, -ENOMEM, "no memory for the decision log");
        int rc = replay_line(h, &r, line, len, e);
        free(line);
        if (rc < 0)
            return rc;
    }
    /* Slots that outlived their node's place in the machine say nothing any more, but an END. */
    for (struct peer *q = h->peers; q; q = q->hh.next) {
        if (q->has_news && q->news.kind != RDZV_NEWS_END && !(h->machine && rdzv_knows(h->machine, q->node)))
            q->has_news = false;
        if (q->has_news && q->news.kind == RDZV_NEWS_END && host_is_over(h))
            host_keep_end(h, &q->news);
    }
    return 0;
}
