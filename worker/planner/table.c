/* Which plan, and why, as a short table. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/buf.h"
#include "common/base/err.h"
#include "worker/planner/planner_impl.h"

enum { MISSED_MAX = 4 }; /* plans that do not fit and are named */

/* The fastest of those that are timed, but `but`; -1: none. */
static int fastest(const struct planner_choice *c, int but)
{
    int best = -1;
    for (int i = 0; i < c->n; i++)
        if (i != but && c->rows[i].timed && (best < 0 || c->rows[i].as.seconds < c->rows[best].as.seconds))
            best = i;
    return best;
}

void planner_pick(struct planner_choice *c)
{
    const int best = fastest(c, -1);
    c->chosen = best;
    c->alike = 0;
    for (int i = 0; i < c->n; i++) {
        const struct planner_row *r = &c->rows[i];
        if (!r->timed || r->as.seconds > c->rows[best].as.seconds * (1 + PLANNER_TELLS))
            continue;
        c->alike++;
        if (plans_simpler(&r->plan, &c->rows[c->chosen].plan))
            c->chosen = i;
    }
    c->next = fastest(c, c->chosen);
}

static bool is_fastest(const struct planner_choice *c)
{
    return c->next < 0 || c->rows[c->chosen].as.seconds <= c->rows[c->next].as.seconds;
}

char *planner_why(const struct planner_choice *c, char *out, size_t cap)
{
    if (c->next < 0)
        snprintf(out, cap, "no other plan fits");
    else if (c->alike < 2)
        snprintf(out, cap, "it is the fastest, by more than %.0f %%", 100 * PLANNER_TELLS);
    else
        snprintf(out, cap, "%sthe simplest of %d within %.0f %% of %s: predictions do not tell these apart",
                 is_fastest(c) ? "the fastest, and " : "", c->alike, 100 * PLANNER_TELLS,
                 is_fastest(c) ? "it" : "the fastest");
    return out;
}

static int put_row(struct buf *b, const char *what, const struct planner_row *r, int64_t limit)
{
    char text[160];
    int rc = buf_printf(b, "  %-10s %s", what, plans_text(&r->plan, text, sizeof text));
    while (rc >= 0 && b->len && b->data[b->len - 1] == ' ')
        b->data[--b->len] = '\0';
    if (rc >= 0 && r->timed)
        rc = buf_printf(b, "  %9.1f ms", 1e3 * r->as.seconds);
    else if (rc >= 0)
        rc = buf_addstr(b, "            -");
    if (rc >= 0)
        rc = buf_printf(b, " %10.1f MiB", (double)r->as.need / MIB);
    if (rc >= 0 && limit && r->as.need > limit)
        rc = buf_printf(b, ", %.1f MiB too much", (double)(r->as.need - limit) / MIB);
    return rc < 0 ? rc : buf_addstr(b, "\n");
}

/* Of those that do not fit, the k-th in need. */
static const struct planner_row *missed(const struct planner_choice *c, int k)
{
    for (int i = 0; i < c->n; i++) {
        int less = 0;
        for (int j = 0; j < c->n; j++)
            less += !c->rows[j].fits &&
                    (c->rows[j].as.need < c->rows[i].as.need || (c->rows[j].as.need == c->rows[i].as.need && j < i));
        if (!c->rows[i].fits && less == k)
            return &c->rows[i];
    }
    return NULL;
}

static int put_table(struct buf *b, const struct planner_choice *c, int64_t limit)
{
    char why[120];
    int fit = 0;
    for (int i = 0; i < c->n; i++)
        fit += c->rows[i].fits;
    int rc = buf_printf(b, "auto-parallel: %d of %d plans fit", fit, c->n);
    rc = rc < 0 ? rc : limit ? buf_printf(b, " %.1f MiB a rank\n", (double)limit / MIB) : buf_addstr(b, "\n");
    if (rc >= 0)
        rc = buf_printf(b, "  %-10s %-14s %-18s %5s %5s %12s %14s\n", "", "data x t x st.", "schedule", "parts", "ZeRO",
                        "a step", "a rank holds");
    if (rc >= 0)
        rc = put_row(b, "chosen", &c->rows[c->chosen], limit);
    if (rc >= 0 && c->next >= 0)
        rc = put_row(b, is_fastest(c) ? "next best" : "fastest", &c->rows[c->next], limit);
    if (rc >= 0)
        rc = buf_printf(b, "  why: %s\n", planner_why(c, why, sizeof why));
    for (int k = 0; k < c->n - fit && k < MISSED_MAX && rc >= 0; k++)
        rc = put_row(b, k ? "" : "do not fit", missed(c, k), limit);
    if (rc >= 0 && c->n - fit > MISSED_MAX)
        rc = buf_printf(b, "  and %d more, which hold more\n", c->n - fit - MISSED_MAX);
    return rc;
}

int planner_table(const struct planner_choice *c, int64_t limit, char **ret, struct err *e)
{
    struct buf b = {0};

    if (put_table(&b, c, limit) < 0) {
        buf_free(&b);
        return err_errno(e, ENOMEM, "a table of %d plans", c->n);
    }
    *ret = b.data;
    return 0;
}
