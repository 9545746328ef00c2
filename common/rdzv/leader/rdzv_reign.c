/* Loads a leader's decisions from a home, and appends new ones (rdzv_reign.h). */
#include "common/rdzv/leader/rdzv_reign.h"

#include <errno.h>
#include <string.h>

#include "common/base/err.h"
#include "common/rdzv/wire/rdzv_wire.h"

#define KEEP_BYTES ((size_t)1 << 20)

/* --- the beginning */

/* Write "@reign ...", the first line of each decision. A claim writes this line alone. */
static int reign_line(const char *epoch, const char *holder, const char *identity, bool claim, struct buf *out)
{
    TRY(buf_addstr(out, "@reign"));
    TRY(rdzv_field_text(out, "epoch", epoch));
    TRY(rdzv_field_text(out, "holder", holder));
    TRY(rdzv_field_text(out, "home", identity));
    if (claim)
        TRY(rdzv_field_int(out, "claim", 1));
    return buf_add(out, "\n", 1);
}

int rdzv_reign_record(const char *epoch, const char *holder, const char *identity, struct buf *out)
{
    return reign_line(epoch, holder, identity, true, out);
}

/* Note under which incarnation of the home this record was made. A decision proves that its reign waited for what
 * the home may have lost. A claim without a decision, in another incarnation, proves nothing: decisions may have
 * followed that were lost. */
static void note_identity(struct rdzv_reign *r, const char *p, size_t n)
{
    char word[2], home[RDZV_IDENTITY_MAX + 1] = "";
    if (rdzv_field_find(p, n, "home", home, sizeof home) != 1)
        return;
    bool decision = rdzv_field_find(p, n, "claim", word, sizeof word) == 0;
    if (decision)
        memcpy(r->former_identity, home, sizeof home);
    r->lost = !decision && (r->lost || strcmp(home, r->identity) != 0);
}

static int replay(struct rdzv_reign *r, const char *p, size_t n, int64_t now, int64_t grace_ms, struct err *e)
{
    static const char reign[] = "@reign ";
    const char *end = p + n;
    for (const char *at = p, *nl; at < end; at = nl ? nl + 1 : end) {
        nl = memchr(at, '\n', (size_t)(end - at));
        size_t len = (size_t)((nl ? nl : end) - at);
        if (len >= sizeof reign && memcmp(at, reign, sizeof reign - 1) == 0)
            note_identity(r, at + sizeof reign - 1, len - (sizeof reign - 1));
    }
    int rc = leader_replay(r->leader, p, n, now, e);
    rc = rc ? rc : leader_restore(r->leader, now, grace_ms, e);
    return rc == 0 || rc == -ENOMEM || rc == ERR_MISMATCH ? rc : ERR_CORRUPT;
}

int rdzv_reign_take_over(struct rdzv_reign *r, int64_t (*now)(const struct rdzv_reign *r), int64_t grace_ms,
                         struct err *e)
{
    struct buf log = {0};
    buf_init(&log, (size_t)1 << 30);
    int rc = r->home->ops->load(r->home, &log, e); /* may take long: read the clock again after it */
    if (rc == 0 && (rc = replay(r, log.data ? log.data : "", log.len, now(r), grace_ms, e)) < 0)
        err_wrap(e, "decision log");
    buf_free(&log);
    return rc;
}

bool rdzv_reign_has_loss(const struct rdzv_reign *r)
{
    return r->lost || (r->former_identity[0] && strcmp(r->former_identity, r->identity) != 0);
}

/* --- decisions */

static int append(struct rdzv_reign *r, const struct rdzv_write *w, struct err *e)
{
    r->whole = w->whole ? w->decision->len : r->whole;
    r->logged = w->whole ? 0 : r->logged + w->decision->len;
    return rdzv_home_append(r->home, w, e);
}

int rdzv_reign_decide(struct rdzv_reign *r, bool whole, int64_t now_ms, struct err *e)
{
    struct buf decision = {0};
    const size_t keep = (r->keep_bytes ? r->keep_bytes : KEEP_BYTES) + 4 * r->whole;
    whole = whole || r->logged > keep || (leader_begins(r->leader) && r->former_identity[0]);
    int rc = reign_line(r->epoch, r->holder, r->identity, false, &decision);
    rc = rc ? rc : leader_decide(r->leader, now_ms, whole, &decision, e);
    const struct rdzv_write w = {
        .decision = &decision, .epoch = r->epoch, .whole = whole, .over = leader_is_over(r->leader)};
    rc = rc < 0 ? err_set(e, rc, "no memory for a decision") : append(r, &w, e);
    buf_free(&decision);
    return rc < 0 ? rc : rc > 0;
}

void rdzv_reign_note_age(struct rdzv_reign *r, int64_t now_ms)
{
    struct buf line = {0};
    if (r->home && leader_age_line(r->leader, now_ms, &line) == 0)
        append(r, &(struct rdzv_write){.decision = &line, .epoch = r->epoch}, NULL);
    buf_free(&line);
}

uint64_t rdzv_reign_newest(const struct rdzv_reign *r)
{
    return r->home->asked;
}

bool rdzv_reign_stands(const struct rdzv_reign *r, uint64_t number)
{
    return number <= r->home->stands;
}
