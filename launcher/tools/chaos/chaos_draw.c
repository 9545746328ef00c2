/* Draws the sequence of faults from a plan and a seed (chaos_draw.h). */
#include "launcher/tools/chaos/chaos_draw.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/dice.h"
#include "common/base/err.h"
#include "launcher/tools/chaos/chaos_target.h"

/* --- dice */

/* 0..most */
static int64_t roll_to(uint64_t *dice, int64_t most)
{
    return (int64_t)(dice_roll(dice) % ((uint64_t)most + 1));
}

/* --- one fault */

/* Which nodes may have it. */
static int candidates(const struct chaos_targets *t, const struct chaos_act *a, int ret[CHAOS_NODES_MAX])
{
    int n = 0;
    for (int i = 0; i < t->n; i++)
        if ((a->node < 0 || a->node == i) && chaos_target_allows(&t->v[i], a))
            ret[n++] = i;
    return n;
}

static struct chaos_part draw_part(const struct chaos_act *a, const struct chaos_targets *t, int before, uint64_t *dice)
{
    int nodes[CHAOS_NODES_MAX];
    const int n = candidates(t, a, nodes);
    struct chaos_part part = {.act = a, .node = nodes[roll_to(dice, n - 1)], .pick = dice_roll(dice)};
    part.lasts_ms = a->lasts.least_ms + roll_to(dice, a->lasts.most_ms - a->lasts.least_ms);
    if (a->node < 0 && a->rank >= 0)
        part.node = -1;
    else if (a->node < 0 && before >= 0 && chaos_target_allows(&t->v[before], a))
        part.node = before;
    return part;
}

static int add(struct chaos_sequence *s, int64_t at_ms, const struct chaos_line *l, const struct chaos_targets *t,
               uint64_t *dice, struct err *e)
{
    if (s->n == s->cap) {
        s->cap = s->cap ? 2 * s->cap : 256;
        struct chaos_fault *v = realloc(s->v, s->cap * sizeof *v);
        if (!v)
            return err_set(e, -ENOMEM, "no memory for %zu faults", s->cap);
        s->v = v;
    }
    struct chaos_fault *f = &s->v[s->n];
    *f = (struct chaos_fault){.at_ms = at_ms, .drawn = s->n, .n = l->n};
    s->n++;
    for (int i = 0; i < l->n; i++)
        f->parts[i] = draw_part(&l->acts[i], t, i > 0 ? f->parts[0].node : -1, dice);
    return 0;
}

/* --- all of them */

static int refuse_word(const char *word, const char *name, int line, struct err *e)
{
    char roles[128] = "";
    size_t len = 0;
    for (int r = 0; r < CHAOS_OTHER; r++)
        len += (size_t)snprintf(roles + len, sizeof roles - len, "%s%s", r > 0 ? ", " : "",
                                chaos_role_word((enum chaos_role)r));
    return err_set(
        e, ERR_USAGE,
        "%s line %d: '%s' is neither a process of crun nor a word of a TARGET there (%s=PID): expected one of %s", name,
        line, word, word, roles);
}

static int check(const struct chaos_plan *p, const struct chaos_targets *t, const char *name, struct err *e)
{
    int nodes[CHAOS_NODES_MAX];
    for (int i = 0; i < p->n; i++)
        for (int k = 0; k < p->lines[i].n; k++) {
            const struct chaos_act *a = &p->lines[i].acts[k];
            if (a->node >= t->n)
                return err_set(e, ERR_USAGE, "%s line %d: node %d: expected 0 to %d, as many as there are TARGETs",
                               name, p->lines[i].number, a->node, t->n - 1);
            if (candidates(t, a, nodes) == 0 && a->role == CHAOS_OTHER && a->word[0] && a->deed != CHAOS_CORRUPT)
                return refuse_word(a->word, name, p->lines[i].number, e);
            if (candidates(t, a, nodes) == 0)
                return err_set(e, ERR_USAGE, "%s line %d: no TARGET there has what '%s%s%s' needs (%s)", name,
                               p->lines[i].number, chaos_deed_word(a->deed), a->word[0] ? " " : "", a->word,
                               a->deed == CHAOS_CUT                                ? "link="
                               : a->deed == CHAOS_FILL || a->deed == CHAOS_CORRUPT ? "folder="
                               : a->deed == CHAOS_CLOCK                            ? "clock="
                                                                                   : "a crun's pid");
        }
    return p->every_ms > 0 && p->for_ms / p->every_ms > CHAOS_FAULTS_MAX / 4
               ? err_set(e, ERR_USAGE, "%s: expected %d faults at most: 'every' is too short", name,
                         CHAOS_FAULTS_MAX / 4)
               : 0;
}

/* By its share. */
static const struct chaos_line *draw_line(const struct chaos_plan *p, uint64_t *dice)
{
    int64_t all = 0;
    for (int i = 0; i < p->n; i++)
        all += p->lines[i].weight;
    int64_t at = roll_to(dice, all - 1);
    int i = 0;
    while ((at -= p->lines[i].weight) >= 0)
        i++;
    return &p->lines[i];
}

static int by_time(const void *a, const void *b)
{
    const struct chaos_fault *x = a, *y = b;
    return x->at_ms != y->at_ms ? (x->at_ms > y->at_ms) - (x->at_ms < y->at_ms)
                                : (x->drawn > y->drawn) - (x->drawn < y->drawn);
}

static int draw_all(struct chaos_sequence *s, const struct chaos_plan *p, uint64_t seed, const struct chaos_targets *t,
                    struct err *e)
{
    uint64_t dice = seed;
    for (int i = 0; i < p->n; i++)
        if (p->lines[i].weight == 0)
            TRY(add(s, p->lines[i].at_ms, &p->lines[i], t, &dice, e));
    if (p->every_ms == 0)
        return 0;
    for (int64_t at = 0; s->n < CHAOS_FAULTS_MAX;) {
        at += roll_to(&dice, 2 * p->every_ms);
        if (at >= p->for_ms)
            break;
        TRY(add(s, at, draw_line(p, &dice), t, &dice, e));
    }
    return 0;
}

int chaos_sequence_draw(struct chaos_sequence *ret, const struct chaos_plan *p, uint64_t seed,
                        const struct chaos_targets *t, const char *name, struct err *e)
{
    struct chaos_sequence s = {0};
    TRY(check(p, t, name, e));
    const int rc = draw_all(&s, p, seed, t, e);
    if (rc < 0) {
        chaos_sequence_free(&s);
        return rc;
    }
    qsort(s.v, s.n, sizeof *s.v, by_time);
    *ret = s;
    return 0;
}

void chaos_sequence_free(struct chaos_sequence *s)
{
    free(s->v);
    *s = (struct chaos_sequence){0};
}

/* --- text */

char *chaos_part_text(const struct chaos_part *part, char *out, size_t cap)
{
    const struct chaos_act *a = part->act;
    size_t n = (size_t)snprintf(out, cap, "%s%s%s", chaos_deed_word(a->deed), a->word[0] ? " " : "", a->word);
    if (n < cap && part->node >= 0)
        n += (size_t)snprintf(out + n, cap - n, " node %d", part->node);
    if (n < cap && a->rank >= 0)
        n += (size_t)snprintf(out + n, cap - n, " rank %d", a->rank);
    if (n < cap && a->by != 0)
        n += (size_t)snprintf(out + n, cap - n, " by %g", a->by);
    if (n < cap && chaos_deed_lasts(a->deed))
        snprintf(out + n, cap - n, " for %.3f", (double)part->lasts_ms / 1000);
    return out;
}

char *chaos_fault_text(const struct chaos_fault *f, char out[CHAOS_TEXT_MAX])
{
    size_t n = 0;
    for (int i = 0; i < f->n && n < CHAOS_TEXT_MAX; i++) {
        char part[CHAOS_TEXT_MAX / CHAOS_ACTS_MAX];
        n += (size_t)snprintf(out + n, CHAOS_TEXT_MAX - n, "%s%s", i > 0 ? " and " : "",
                              chaos_part_text(&f->parts[i], part, sizeof part));
    }
    return out;
}
