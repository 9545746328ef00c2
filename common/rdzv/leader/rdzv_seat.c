#include "common/rdzv/leader/rdzv_seat.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "common/job/exitcode.h"
#include "common/rdzv/wire/rdzv_slot.h"
#include "common/rdzv/wire/rdzv_wire.h"

int rdzv_seat_init(struct rdzv_seat *s, const char *node, const char *inc, const struct rdzv_config *c, int64_t now)
{
    struct buf b = {0};
    *s = (struct rdzv_seat){.silence_ms = c->silence_ms, .lease = now};
    snprintf(s->node, sizeof s->node, "%s", node);
    snprintf(s->inc, sizeof s->inc, "%s", inc);
    int rc = rdzv_config_encode(c, &b);
    s->settings = b.data;
    return rc;
}

void rdzv_seat_finish(struct rdzv_seat *s)
{
    for (int i = 0; i < s->waiting_count; i++)
        free(s->waiting[i].text);
    free(s->settings);
    s->waiting_count = 0;
    s->settings = NULL;
}

/* --- asking */

/* Requests the leader has answered, and all of a kind that a newer one replaces. */
static void drop_requests(struct rdzv_seat *s, int replaced)
{
    int kept = 0;
    for (int i = 0; i < s->waiting_count; i++) {
        if (s->waiting[i].q <= s->answered || s->waiting[i].kind == replaced)
            free(s->waiting[i].text);
        else
            s->waiting[kept++] = s->waiting[i];
    }
    s->waiting_count = kept;
}

static void note(struct rdzv_seat *s, const struct rdzv_event *ev)
{
    switch (ev->kind) {
    case RDZV_JOIN:
        s->join = *ev;
        s->join_q = s->q;
        s->joining = true;
        s->works = s->done = false;
        break;
    case RDZV_DONE:
        s->done = true;
        s->works = false;
        break;
    case RDZV_LEAVE:
        s->leaving = true;
        s->why_leaving = ev->cause;
        break;
    default:
        break;
    }
}

int rdzv_seat_ask(struct rdzv_seat *s, const struct rdzv_event *asked)
{
    struct rdzv_event ev = *asked;
    struct buf b = {0};
    drop_requests(s, (int)ev.kind);
    if (s->waiting_count == SEAT_REQUESTS_MAX)
        return -EBUSY;
    memcpy(ev.node, s->node, sizeof ev.node);
    ev.round = s->known_round;
    int rc = rdzv_field_int(&b, "q", (long long)(s->q + 1));
    rc = rc ? rc : rdzv_event_encode(&ev, &b);
    if (ev.kind == RDZV_JOIN && rc == 0)
        rc = buf_printf(&b, " %s", s->settings);
    if (rc < 0) {
        buf_free(&b);
        return rc;
    }
    s->waiting[s->waiting_count++] = (struct rdzv_request){.q = ++s->q, .kind = (int)ev.kind, .text = b.data};
    note(s, &ev);
    return 0;
}

int rdzv_seat_beat(struct rdzv_seat *s, struct buf *out)
{
    buf_clear(out);
    s->n++;
    TRY(rdzv_field_text(out, "inc", s->inc));
    TRY(rdzv_field_int(out, "n", (long long)s->n));
    TRY(rdzv_field_int(out, "q", (long long)s->q));
    TRY(rdzv_field_text(out, "epoch", s->epoch));
    TRY(rdzv_field_text(out, "instance", s->instance));
    TRY(rdzv_field_int(out, "told", (long long)s->known_round));
    TRY(rdzv_field_int(out, "restarts", s->restarts));
    TRY(rdzv_field_int(out, "seen", (long long)s->seen));
    TRY(rdzv_field_int(out, "bye", s->bye));
    for (int i = 0; i < s->waiting_count; i++)
        TRY(buf_printf(out, "\n%s", s->waiting[i].text));
    return 0;
}

/* What must be repeated: to a leader that may not know of it, or after a lapse. A repeat does no harm. */
static int repeat_claims(struct rdzv_seat *s)
{
    if (s->leaving)
        TRY(rdzv_seat_ask(s, &(struct rdzv_event){.kind = RDZV_LEAVE, .cause = s->why_leaving}));
    if (s->done)
        TRY(rdzv_seat_ask(s, &(struct rdzv_event){.kind = RDZV_DONE}));
    struct rdzv_event join = s->join;
    return s->joining ? rdzv_seat_ask(s, &join) : 0;
}

/* --- hearing */

static void believe(struct rdzv_seat *s, const struct rdzv_news *news, struct rdzv_heard *ret)
{
    s->seen = news->seq;
    if (news->kind != RDZV_NEWS_END && news->round > s->known_round)
        s->known_round = news->round;
    if (news->restart_count > s->restarts)
        s->restarts = news->restart_count;
    if (news->kind == RDZV_NEWS_ROUND) {
        s->joining = news->spare;
        s->works = !news->spare;
    }
    if (news->kind == RDZV_NEWS_END) {
        s->stops |= s->works;
        s->joining = s->works = s->done = s->leaving = false;
    }
    s->done = s->done && news->kind != RDZV_NEWS_STOP;
    ret->bits |= SEAT_NEWS;
    ret->news = *news;
}

/* A round that we never heard of is stopped: our JOIN must name it. */
static int answer_missed(struct rdzv_seat *s, struct rdzv_heard *ret)
{
    struct rdzv_event join = s->join;
    if (!s->joining || s->leaving || join.round >= s->known_round)
        return 0;
    ret->bits |= SEAT_AGAIN;
    return rdzv_seat_ask(s, &join);
}

static int take_news(struct rdzv_seat *s, const struct rdzv_slot *slot, struct rdzv_heard *ret, struct err *e)
{
    struct rdzv_news news;
    if (slot->news_len == 0)
        return 0;
    TRY(rdzv_news_decode(slot->news, slot->news_len, &news, e));
    bool stale = news.kind == RDZV_NEWS_ROUND && (slot->q < s->join_q || !s->joining);
    if (news.seq <= s->seen || stale)
        return 0;
    believe(s, &news, ret);
    ret->members = slot->members;
    ret->members_len = slot->members_len;
    return news.kind == RDZV_NEWS_STOP ? answer_missed(s, ret) : 0;
}

/* The leader has forgotten us, or never knew us. */
static int take_unknown(struct rdzv_seat *s, bool other_job, struct rdzv_heard *ret)
{
    if (s->works || (s->done && !s->leaving)) {
        s->works = s->done = false;
        ret->bits |= SEAT_UNKNOWN | (other_job ? SEAT_LOST : 0);
    } else if (s->leaving) {
        const struct rdzv_news end = {.seq = s->seen + 1,
                                      .kind = RDZV_NEWS_END,
                                      .round = s->known_round,
                                      .exit_code = EXIT_REQUEUE,
                                      .cause.rank = -1};
        believe(s, &end, ret);
    } else if (s->joining) {
        ret->bits |= SEAT_AGAIN;
        return repeat_claims(s);
    }
    return 0;
}

/* Decode our slot; one that was written for an earlier life of this node is as good as empty. */
static int read_slot(const struct rdzv_seat *s, const struct rdzv_view *v, struct rdzv_slot *ret, struct err *e)
{
    *ret = (struct rdzv_slot){0};
    if (v->slot.len == 0)
        return 0;
    TRY(rdzv_slot_decode(v->slot.data, v->slot.len, ret, e));
    if (strcmp(ret->inc, s->inc) != 0 || ret->q > s->q)
        *ret = (struct rdzv_slot){0};
    return 0;
}

/* Does the home still hold what our workers were started by, or something newer? */
static bool holds_our_round(const struct rdzv_seat *s, const struct rdzv_slot *slot)
{
    struct rdzv_news news;
    return slot->news_len > 0 && rdzv_news_decode(slot->news, slot->news_len, &news, NULL) == 0 && news.seq >= s->seen;
}

static int take_slot(struct rdzv_seat *s, struct rdzv_slot slot, struct rdzv_heard *ret, struct err *e)
{
    if (!slot.inc[0])
        return 0;
    bool other_job = s->instance[0] && strcmp(s->instance, slot.instance) != 0;
    snprintf(s->instance, sizeof s->instance, "%s", slot.instance);
    if (slot.q > s->answered)
        s->answered = slot.q;
    drop_requests(s, -1);
    bool newest = slot.q >= s->join_q && slot.q > 0;
    if (slot.answer == ANSWER_UNKNOWN)
        return newest ? take_unknown(s, other_job, ret) : 0;
    if (newest && (slot.answer == ANSWER_DIFFERS || slot.answer == ANSWER_REFUSED)) {
        ret->bits |= SEAT_REFUSED;
        ret->code = slot.answer == ANSWER_DIFFERS ? ERR_MISMATCH : ERR_REFUSED;
        snprintf(ret->why, sizeof ret->why, "%s", slot.text);
        return 0;
    }
    if (slot.answer == ANSWER_FENCED && s->done && slot.q >= s->q)
        return take_unknown(s, false, ret); /* the round this node is done with was lost: another one waits for it */
    return take_news(s, &slot, ret, e);
}

/* The newest leader has claimed this job on another server than the one that answers here. */
static bool is_elsewhere(const struct rdzv_seat *s, const struct rdzv_view *v)
{
    char mark[RDZV_MARK_LEN + 1];
    const char *claimed = strrchr(s->epoch, '-');
    rdzv_home_mark(v->identity, mark);
    return v->identity[0] && claimed && strcmp(claimed + 1, mark) != 0;
}

int rdzv_seat_hear(struct rdzv_seat *s, const struct rdzv_view *v, int64_t sent, int64_t now, struct rdzv_heard *ret,
                   struct err *e)
{
    *ret = (struct rdzv_heard){0};
    if (strcmp(v->epoch, s->epoch) != 0) { /* promise it first */
        snprintf(s->epoch, sizeof s->epoch, "%s", v->epoch);
        ret->bits |= s->epoch[0] ? SEAT_AGAIN : 0;
        TRY(repeat_claims(s));
        return 0;
    }
    if (!s->epoch[0] || is_elsewhere(s, v))
        return 0; /* nobody leads here: nobody acknowledges */
    struct rdzv_slot slot;
    TRY(read_slot(s, v, &slot, e));
    bool has_workers = s->works || s->stops, lapsed = now >= s->lease;
    bool held = !has_workers || holds_our_round(s, &slot);
    if (held && sent + s->silence_ms > s->lease)
        s->lease = sent + s->silence_ms;
    if (lapsed) {
        ret->bits |= (has_workers ? SEAT_LAPSED : 0) | SEAT_AGAIN;
        s->works = s->stops = false;
        if (sent + s->silence_ms > s->lease)
            s->lease = sent + s->silence_ms;
        TRY(repeat_claims(s));
    }
    if (now >= s->lease) /* the answer took too long to mean anything */
        return 0;
    return take_slot(s, slot, ret, e);
}
