/* Decisions as text: the one format of every home (leader.h). leader_replay.c reads it. */
#include <errno.h>
#include <utlist.h>

#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/rdzv/leader/leader_impl.h"
#include "common/rdzv/wire/rdzv_wire.h"

/* --- writing */

static int begin_line(struct buf *out, const char *word)
{
    if (out->len && out->data[out->len - 1] != '\n')
        TRY(buf_addstr(out, "\n"));
    return buf_addstr(out, word);
}

static int job_line(const struct leader *l, struct buf *out)
{
    TRY(begin_line(out, "@job"));
    TRY(rdzv_field_int(out, "format", LEADER_FORMAT));
    TRY(rdzv_field_text(out, "run", l->run));
    TRY(rdzv_field_text(out, "principal", l->principal));
    TRY(rdzv_field_text(out, "instance", l->instance));
    if (l->former[0])
        TRY(rdzv_field_text(out, "former", l->former));
    return rdzv_config_encode(&l->config, out);
}

int leader_age_line(const struct leader *l, int64_t now_ms, struct buf *out)
{
    TRY(begin_line(out, "@age"));
    const int64_t wall = l->o.wall_ms ? l->o.wall_ms() : 0;
    if (wall > 0)
        TRY(rdzv_field_int(out, "at", (long long)wall));
    return rdzv_field_int(out, "ms", (long long)(now_ms - l->history.started_ms));
}

static int news_line(const struct leader_member *m, struct buf *out)
{
    if (!m->has_news)
        return 0;
    TRY(begin_line(out, "@news"));
    TRY(rdzv_field_text(out, "host_node", m->node));
    TRY(rdzv_field_text(out, "instance", m->instance));
    return rdzv_news_encode(&m->news, out);
}

static int elder_lines(const struct leader *l, struct buf *out)
{
    for (const struct leader_member *m = l->members; m && l->elders > 0; m = m->hh.next)
        if (m->elder) {
            TRY(begin_line(out, "@elder"));
            TRY(rdzv_field_text(out, "host_node", m->node));
        }
    return 0;
}

static int restart_line(const struct leader_restart *r, struct buf *out)
{
    TRY(begin_line(out, "@restart"));
    TRY(rdzv_field_int(out, "at", r->at_ms));
    TRY(rdzv_field_int(out, "round", (long long)r->round));
    TRY(rdzv_field_int(out, "code", r->cause.exit_code));
    TRY(rdzv_field_int(out, "rank", r->cause.rank));
    return rdzv_field_text(out, "text", r->cause.text);
}

static int restart_lines(const struct leader *l, uint64_t from, struct buf *out)
{
    const struct leader_history *h = &l->history;
    if (h->restart_count > LEADER_RESTARTS && from < h->restart_count - LEADER_RESTARTS)
        from = h->restart_count - LEADER_RESTARTS;
    for (; from < h->restart_count; from++)
        TRY(restart_line(&h->restarts[from % LEADER_RESTARTS], out));
    return 0;
}

int leader_text(struct leader *l, int64_t now_ms, struct buf *out, struct err *e)
{
    if (l->machine) {
        TRY(job_line(l, out));
        TRY(leader_age_line(l, now_ms, out));
        TRY(begin_line(out, ""));
        TRY(rdzv_snapshot(l->machine, now_ms, out, e));
    }
    for (const struct leader_member *m = l->members; m; m = m->hh.next)
        TRY(news_line(m, out));
    TRY(elder_lines(l, out));
    TRY(restart_lines(l, 0, out));
    return begin_line(out, "");
}

static int changes(struct leader *l, int64_t now, struct buf *out, struct err *e)
{
    if (l->machine) {
        TRY(leader_age_line(l, now, out));
        TRY(begin_line(out, ""));
        TRY(rdzv_delta(l->machine, now, out, e));
    }
    for (const struct leader_member *m = l->unsaid; m; m = m->unsaid_next)
        TRY(news_line(m, out));
    TRY(restart_lines(l, l->restarts_logged, out));
    return begin_line(out, "");
}

bool leader_undecided(const struct leader *l)
{
    return l->begun || l->changed || l->unsaid;
}

bool leader_begins(const struct leader *l)
{
    return l->begun;
}

int leader_decide(struct leader *l, int64_t now_ms, bool whole, struct buf *out, struct err *e)
{
    struct leader_member *m, *next;
    struct buf delta = {0};
    int rc = 0;
    if (whole || l->begun) {
        rc = l->machine ? rdzv_delta(l->machine, now_ms, &delta, e) : 0; /* the next delta starts here */
        buf_free(&delta);
        rc = rc ? rc : leader_text(l, now_ms, out, e);
    } else {
        rc = changes(l, now_ms, out, e);
    }
    if (rc < 0)
        return err_set(e, rc, "no memory for a decision");
    DL_FOREACH_SAFE2(l->unsaid, m, next, unsaid_next)
    m->unsaid = false;
    l->unsaid = NULL;
    l->begun = l->changed = false;
    l->restarts_logged = l->history.restart_count;
    return 0;
}
