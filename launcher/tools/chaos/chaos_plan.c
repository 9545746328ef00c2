/* Parses a plan of faults (chaos_plan.h). */
#include "launcher/tools/chaos/chaos_plan.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/args/args.h"
#include "common/base/err.h"

#define WORDS_MAX 64
#define WEEK_MS (7 * CHAOS_DAY_MS)
#define WEIGHT_MAX 1000000
#define SLOWEST 1000
#define CLOCK_MAX_S (366.0 * 86400)

static const struct {
    const char *word;
    enum chaos_takes takes;
    bool lasts, by;
} deeds[] = {
#define X(id, word, takes, lasts, by) [id] = {word, takes, lasts, by},
    CHAOS_DEEDS(X)
#undef X
};
static const char *const roles[] = {
#define X(id, word) [id] = word,
    CHAOS_ROLES(X)
#undef X
};

#define N_DEEDS (int)(sizeof deeds / sizeof *deeds)

const char *chaos_deed_word(enum chaos_deed deed)
{
    return deeds[deed].word;
}

bool chaos_deed_lasts(enum chaos_deed deed)
{
    return deeds[deed].lasts;
}

enum chaos_role chaos_role_of(const char *word)
{
    int i = 0;
    while (i < CHAOS_OTHER && strcmp(roles[i], word) != 0)
        i++;
    return (enum chaos_role)i;
}

const char *chaos_role_word(enum chaos_role role)
{
    return roles[role];
}

/* --- words of a line */

struct words {
    char *v[WORDS_MAX];
    int n, at;
};

static int split(struct words *w, char *line, struct err *e)
{
    char *rest = NULL;
    *w = (struct words){0};
    line[strcspn(line, "#")] = '\0';
    for (char *word = strtok_r(line, " \t\r", &rest); word; word = strtok_r(NULL, " \t\r", &rest)) {
        if (w->n == WORDS_MAX)
            return err_set(e, ERR_USAGE, "expected at most %d words", WORDS_MAX);
        w->v[w->n++] = word;
    }
    return 0;
}

static const char *peek(const struct words *w)
{
    return w->at < w->n ? w->v[w->at] : "";
}

static bool take(struct words *w, const char *word)
{
    const bool is = strcmp(peek(w), word) == 0;
    w->at += is;
    return is;
}

static int once(bool is_again, const char *what, struct err *e)
{
    return is_again ? err_set(e, ERR_USAGE, "'%s' stands there twice: expected it once", what) : 0;
}

/* The one behind `what`. */
static int next(struct words *w, const char *what, const char **ret, struct err *e)
{
    if (w->at == w->n)
        return err_set(e, ERR_USAGE, "'%s' needs a value behind it", what);
    *ret = w->v[w->at++];
    return 0;
}

/* --- values */

static int read_ms(const char *text, const char *what, int64_t *ret, struct err *e)
{
    double s;
    TRY(parse_seconds(text, what, &s, e));
    if (s * 1000 > (double)WEEK_MS)
        return err_set(e, ERR_USAGE, "%s: '%s' is too long, expected a week (7d) at most", what, text);
    *ret = llround(s * 1000);
    return 0;
}

/* "5s", "50ms..6s" */
static int read_span(char *text, struct chaos_span *ret, struct err *e)
{
    char *dots = strstr(text, "..");
    if (dots)
        *dots = '\0';
    int rc = read_ms(text, "for", &ret->least_ms, e);
    ret->most_ms = ret->least_ms;
    if (rc == 0 && dots)
        rc = read_ms(dots + 2, "for", &ret->most_ms, e);
    if (dots)
        *dots = '.';
    TRY(rc);
    if (ret->most_ms < ret->least_ms || ret->most_ms == 0)
        return err_set(e, ERR_USAGE, "for: '%s': expected a time above 0, or LEAST..MOST", text);
    return 0;
}

/* Seconds with a sign. */
static int read_jump(const char *text, double *ret, struct err *e)
{
    const bool back = *text == '-';
    TRY(parse_seconds(text + (back || *text == '+'), "by", ret, e));
    if (*ret == 0 || *ret > CLOCK_MAX_S)
        return err_set(e, ERR_USAGE, "by: '%s': expected a time above 0 and of a year at most, '-' in front: back",
                       text);
    *ret = back ? -*ret : *ret;
    return 0;
}

static int read_by(const struct chaos_act *a, const char *text, double *ret, struct err *e)
{
    if (a->deed == CHAOS_CLOCK)
        return read_jump(text, ret, e);
    TRY(parse_f64(text, "by", 1, SLOWEST, ret, e));
    return *ret > 1 ? 0 : err_set(e, ERR_USAGE, "by: '%s': expected more than 1 (2: half as fast)", text);
}

static int read_index(const char *text, const char *what, int most, int *ret, struct err *e)
{
    int64_t v;
    TRY(parse_i64(text, what, 0, most, &v, e));
    *ret = (int)v;
    return 0;
}

/* --- one act */

static int read_deed(struct words *w, struct chaos_act *a, struct err *e)
{
    const char *word = peek(w);
    int i = 0;
    while (i < N_DEEDS && strcmp(deeds[i].word, word) != 0)
        i++;
    if (i == N_DEEDS)
        return err_set(e, ERR_USAGE,
                       "'%s': expected a fault (kill, terminate, stop, slow, cut, fill, corrupt or clock)", word);
    a->deed = (enum chaos_deed)i;
    w->at++;
    if (deeds[i].takes == CHAOS_TAKES_NONE)
        return 0;
    TRY(next(w, deeds[i].word, &word, e));
    if (strlen(word) >= sizeof a->word)
        return err_set(e, ERR_USAGE, "'%s': expected fewer than %d letters", word, CHAOS_WORD_MAX);
    snprintf(a->word, sizeof a->word, "%s", word);
    a->role = deeds[i].takes == CHAOS_TAKES_WHO ? chaos_role_of(word) : CHAOS_OTHER;
    return 0;
}

static int read_detail(struct words *w, struct chaos_act *a, bool *ret_by, struct err *e)
{
    const char *value = "";
    if (take(w, "node")) {
        TRY(once(a->node >= 0, "node", e));
        return next(w, "node", &value, e) < 0 ? ERR_USAGE : read_index(value, "node", CHAOS_NODES_MAX - 1, &a->node, e);
    }
    if (take(w, "rank")) {
        TRY(once(a->rank >= 0, "rank", e));
        if (a->role != CHAOS_WORKER)
            return err_set(e, ERR_USAGE, "'rank' is for workers");
        return next(w, "rank", &value, e) < 0 ? ERR_USAGE : read_index(value, "rank", INT32_MAX, &a->rank, e);
    }
    if (deeds[a->deed].by && take(w, "by")) {
        TRY(once(*ret_by, "by", e));
        *ret_by = true;
        return next(w, "by", &value, e) < 0 ? ERR_USAGE : read_by(a, value, &a->by, e);
    }
    if (deeds[a->deed].lasts && take(w, "for")) {
        TRY(once(a->lasts.most_ms > 0, "for", e));
        return next(w, "for", &value, e) < 0 ? ERR_USAGE : read_span(w->v[w->at - 1], &a->lasts, e);
    }
    return err_set(e, ERR_USAGE, "'%s' behind %s: expected node N%s%s%s, or 'and' and another fault", peek(w),
                   deeds[a->deed].word, a->role == CHAOS_WORKER ? ", rank N" : "",
                   deeds[a->deed].by ? a->deed == CHAOS_CLOCK ? ", by TIME" : ", by FACTOR" : "",
                   deeds[a->deed].lasts ? ", for TIME" : "");
}

static int read_act(struct words *w, struct chaos_act *a, struct err *e)
{
    bool by = false;
    *a = (struct chaos_act){.role = CHAOS_OTHER, .node = -1, .rank = -1};
    TRY(read_deed(w, a, e));
    while (w->at < w->n && strcmp(peek(w), "and") != 0)
        TRY(read_detail(w, a, &by, e));
    if (deeds[a->deed].by && !by)
        return err_set(e, ERR_USAGE, "%s: by how much is missing ('%s')", deeds[a->deed].word,
                       a->deed == CHAOS_CLOCK ? "by -1h" : "by 4");
    if (deeds[a->deed].lasts && a->lasts.most_ms == 0)
        return err_set(e, ERR_USAGE, "%s: for how long is missing ('for 5s', 'for 50ms..6s')", deeds[a->deed].word);
    return 0;
}

/* --- lines */

static int read_acts(struct words *w, struct chaos_line *l, struct err *e)
{
    do {
        if (l->n == CHAOS_ACTS_MAX)
            return err_set(e, ERR_USAGE, "expected at most %d faults joined by 'and'", CHAOS_ACTS_MAX);
        TRY(read_act(w, &l->acts[l->n++], e));
    } while (take(w, "and"));
    return 0;
}

static int read_fault_line(struct words *w, struct chaos_plan *p, bool drawn, int number, struct err *e)
{
    const char *value = "";
    if (p->n == CHAOS_LINES_MAX)
        return err_set(e, ERR_USAGE, "expected at most %d lines of faults", CHAOS_LINES_MAX);
    struct chaos_line *l = &p->lines[p->n++];
    *l = (struct chaos_line){.number = number};
    TRY(next(w, drawn ? "draw" : "at", &value, e));
    if (drawn) {
        int64_t weight;
        TRY(parse_i64(value, "draw", 1, WEIGHT_MAX, &weight, e));
        l->weight = (int)weight;
    } else
        TRY(read_ms(value, "at", &l->at_ms, e));
    return read_acts(w, l, e);
}

static int read_line(struct words *w, struct chaos_plan *p, int number, struct err *e)
{
    const char *value = "";
    if (w->n == 0)
        return 0;
    if (take(w, "draw"))
        return read_fault_line(w, p, true, number, e);
    if (take(w, "at"))
        return read_fault_line(w, p, false, number, e);
    const bool lasts = take(w, "for");
    if (!lasts && !take(w, "every"))
        return err_set(e, ERR_USAGE, "'%s': expected for, every, draw or at", peek(w));
    int64_t *to = lasts ? &p->for_ms : &p->every_ms;
    TRY(once(*to > 0, w->v[0], e));
    TRY(next(w, w->v[0], &value, e));
    TRY(read_ms(value, w->v[0], to, e));
    if (*to == 0)
        return err_set(e, ERR_USAGE, "%s: '%s': expected a time of a millisecond or more", w->v[0], value);
    return w->at == w->n ? 0
                         : err_set(e, ERR_USAGE, "'%s' behind '%s %s' is one word too many", peek(w), w->v[0], value);
}

static int check(const struct chaos_plan *p, const char *name, struct err *e)
{
    bool drawn = false;
    for (int i = 0; i < p->n; i++)
        drawn = drawn || p->lines[i].weight > 0;
    if (p->n == 0)
        return err_set(e, ERR_USAGE, "%s: no fault is in it: expected lines 'draw WEIGHT FAULT' or 'at TIME FAULT'",
                       name);
    if (drawn && (p->for_ms == 0 || p->every_ms == 0))
        return err_set(e, ERR_USAGE, "%s: faults are drawn, and the line '%s' is missing", name,
                       p->for_ms == 0 ? "for TIME" : "every TIME");
    if (!drawn && p->every_ms > 0)
        return err_set(e, ERR_USAGE, "%s: 'every' is for faults that are drawn, and there is no line 'draw'", name);
    return 0;
}

int chaos_plan_parse(struct chaos_plan *ret, char *text, const char *name, struct err *e)
{
    *ret = (struct chaos_plan){0};
    int number = 0;
    for (char *line = text, *end; line; line = end) {
        struct words w;
        end = strchr(line, '\n');
        if (end)
            *end++ = '\0';
        number++;
        int rc = split(&w, line, e);
        if (rc == 0)
            rc = read_line(&w, ret, number, e);
        if (rc < 0)
            return err_wrap(e, "%s line %d", name, number), ERR_USAGE;
    }
    return check(ret, name, e);
}
