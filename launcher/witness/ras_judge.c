/* Finds in an answer of RAS the ranks that the others wait for. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/numbers.h"
#include "launcher/witness/ras_answer.h"

/* --- do they move? */

static bool same_rank(const struct ras_rank *a, const struct ras_rank *b)
{
    return a->rank == b->rank && a->missing == b->missing && memcmp(a->counts, b->counts, sizeof a->counts) == 0;
}

bool ras_stands_still(const struct ras_answer *a, const struct ras_answer *b)
{
    bool same = a->n_comms == b->n_comms && memcmp(a->types, b->types, sizeof a->types) == 0;
    for (int c = 0; same && c < a->n_comms; c++) {
        const struct ras_comm *x = &a->comms[c], *y = &b->comms[c];
        same = strcmp(x->hash, y->hash) == 0 && strcmp(x->second, y->second) == 0 && x->n == y->n &&
               x->settled == y->settled;
        for (int i = 0; same && i < x->n; i++)
            same = same_rank(&x->ranks[i], &y->ranks[i]);
    }
    return same;
}

/* --- one communicator */

static uint64_t total(const struct ras_rank *k)
{
    uint64_t n = 0;
    for (int t = 0; t < RAS_TYPES_MAX; t++)
        n += k->counts[t];
    return n;
}

static bool differs(const struct ras_comm *c)
{
    for (int i = 1; i < c->n; i++)
        if (memcmp(c->ranks[i].counts, c->ranks[0].counts, sizeof c->ranks[0].counts) != 0)
            return true;
    return false;
}

/* Has each of the two launched something that the other has not? */
static bool cross(const struct ras_rank *a, const struct ras_rank *b)
{
    bool more = false, less = false;
    for (int t = 0; t < RAS_TYPES_MAX; t++) {
        more = more || a->counts[t] > b->counts[t];
        less = less || a->counts[t] < b->counts[t];
    }
    return more && less;
}

static const struct ras_rank *least(const struct ras_comm *c)
{
    const struct ras_rank *k = c->ranks;
    for (int i = 1; i < c->n; i++)
        if (total(&c->ranks[i]) < total(k))
            k = &c->ranks[i];
    return k;
}

static int count_like(const struct ras_comm *c, const struct ras_rank *k)
{
    int n = 0;
    for (int i = 0; i < c->n; i++)
        n += memcmp(c->ranks[i].counts, k->counts, sizeof k->counts) == 0;
    return n;
}

/* Are there two groups of ranks, each of which has launched what the other has not? *ret_few: a rank of the smaller
 * group, *ret_many: of the larger; the first two if both are equal. */
static bool has_other_calls(const struct ras_comm *c, const struct ras_rank **ret_few, const struct ras_rank **ret_many)
{
    const struct ras_rank *first = c->ranks;
    for (int i = 1; i < c->n; i++) {
        const struct ras_rank *k = &c->ranks[i];
        if (!cross(first, k))
            continue;
        const bool rare = count_like(c, k) <= count_like(c, first);
        *ret_few = rare ? k : first;
        *ret_many = rare ? first : k;
        return true;
    }
    return false;
}

/* --- words */

/* "all-reduce" of "AllReduce". */
static void add_type(const char *name, char *out, size_t cap)
{
    size_t n = 0;
    for (; *name && n + 2 < cap; name++) {
        const bool large = *name >= 'A' && *name <= 'Z', known = large || (*name >= 'a' && *name <= 'z');
        if (large && n > 0)
            out[n++] = '-';
        out[n++] = large ? (char)(*name + 32) : known ? *name : '?';
    }
    out[n] = '\0';
}

/* "6,650" */
static void add_number(uint64_t v, char out[32])
{
    char digits[24];
    const int n = snprintf(digits, sizeof digits, "%" PRIu64, v);
    size_t at = 0;
    for (int i = 0; i < n; i++) {
        if (i > 0 && (n - i) % 3 == 0)
            out[at++] = ',';
        out[at++] = digits[i];
    }
    out[at] = '\0';
}

/* Append "all-reduce 6,650": the first collective that `others` have launched and `k` has not. */
static void add_call(const struct ras_answer *a, const struct ras_rank *k, const struct ras_rank *others, char *out,
                     size_t cap)
{
    size_t n = 0;
    out[0] = '\0';
    for (int t = 0; t < a->n_types && n < cap; t++) {
        char type[40], number[32];
        if (k->counts[t] >= others->counts[t])
            continue;
        add_type(a->types[t], type, sizeof type);
        add_number(k->counts[t] + 1, number);
        n += (size_t)snprintf(out + n, cap - n, "%s%s %s", n ? " and " : "", type, number);
    }
}

static const char *list_late(const struct ras_verdict *v, int world, char *out, size_t cap)
{
    struct ranges r = {.out = out, .cap = cap};
    out[0] = '\0';
    for (int i = 0; i < world; i++)
        if (v->late[i])
            ranges_add(&r, i);
    return v->n_late > 1 ? "s" : "";
}

/* --- all of them */

static void blame(struct ras_verdict *v, int world, const bool *who)
{
    v->n_late = 0;
    v->first = -1;
    for (int i = 0; i < world; i++) {
        v->late[i] = who[i];
        v->n_late += who[i];
        v->first = who[i] && v->first < 0 ? i : v->first;
    }
}

static bool judge_missing(const struct ras_answer *a, int world, bool *who, struct ras_verdict *v)
{
    char ranks[96];
    bool any = false;
    for (int c = 0; c < a->n_comms; c++)
        for (int i = 0; a->comms[c].settled && i < a->comms[c].n; i++)
            if (a->comms[c].ranks[i].missing)
                any = who[a->comms[c].ranks[i].rank] = true;
    if (!any)
        return false;
    blame(v, world, who);
    v->finding = RAS_MISSES;
    const char *plural = list_late(v, world, ranks, sizeof ranks);
    snprintf(v->text, sizeof v->text, "NCCL's RAS does not reach the process%s of rank%s %s", v->n_late > 1 ? "es" : "",
             plural, ranks);
    return true;
}

static bool judge_calls(const struct ras_answer *a, int world, bool *who, struct ras_verdict *v)
{
    const struct ras_rank *few, *many;
    char mine[96], theirs[96], ranks[64];
    for (int c = 0; c < a->n_comms; c++) {
        const struct ras_comm *m = &a->comms[c];
        if (!m->settled || !has_other_calls(m, &few, &many))
            continue;
        for (int i = 0; i < m->n; i++)
            who[m->ranks[i].rank] = memcmp(m->ranks[i].counts, few->counts, sizeof few->counts) == 0;
        blame(v, world, who);
        v->finding = RAS_OTHER_CALLS;
        add_call(a, many, few, mine, sizeof mine);
        add_call(a, few, many, theirs, sizeof theirs);
        const char *plural = list_late(v, world, ranks, sizeof ranks);
        snprintf(v->text, sizeof v->text, "rank%s %s launched %s of communicator %s where %d rank%s launched %s",
                 plural, ranks, mine, m->hash, count_like(m, many), count_like(m, many) > 1 ? "s" : "", theirs);
        return true;
    }
    return false;
}

/* The ranks that have launched least are late, and all others wait for them: NCCL completes nothing without all
 * ranks. */
static void sort_out(const struct ras_answer *a, bool *late, bool *waits)
{
    for (int c = 0; c < a->n_comms; c++) {
        const struct ras_comm *m = &a->comms[c];
        if (!m->settled || m->n == 0 || !differs(m))
            continue;
        const uint64_t n = total(least(m));
        for (int i = 0; i < m->n; i++)
            *(total(&m->ranks[i]) == n ? &late[m->ranks[i].rank] : &waits[m->ranks[i].rank]) = true;
    }
}

/* Describe the communicator in which most ranks wait for the first one to blame. */
static void describe_late(const struct ras_answer *a, int world, struct ras_verdict *v)
{
    int most = 0;
    char ranks[96], call[128];
    const char *plural = list_late(v, world, ranks, sizeof ranks);
    for (int c = 0; c < a->n_comms; c++) {
        const struct ras_comm *m = &a->comms[c];
        const struct ras_rank *late = NULL, *far = m->ranks;
        const uint64_t lowest = m->n > 0 ? total(least(m)) : 0;
        int waiting = 0;
        for (int i = 0; m->settled && i < m->n; i++) {
            const bool is_late = total(&m->ranks[i]) == lowest;
            late = is_late && m->ranks[i].rank == v->first ? &m->ranks[i] : late;
            far = total(&m->ranks[i]) > total(far) ? &m->ranks[i] : far;
            waiting += !is_late;
        }
        if (!late || waiting <= most)
            continue;
        most = waiting;
        add_call(a, late, far, call, sizeof call);
        snprintf(v->text, sizeof v->text, "rank%s %s ha%s not launched %s of communicator %s; %d rank%s wait%s in it",
                 plural, ranks, v->n_late > 1 ? "ve" : "s", call, m->hash, waiting, waiting > 1 ? "s" : "",
                 waiting > 1 ? "" : "s");
    }
}

static bool judge_late(const struct ras_answer *a, int world, bool *late, bool *waits, struct ras_verdict *v)
{
    char ranks[96];
    bool any = false, root = false;
    sort_out(a, late, waits);
    for (int r = 0; r < world; r++) {
        any = any || late[r];
        root = root || (late[r] && !waits[r]);
    }
    for (int r = 0; r < world && root; r++)
        late[r] = late[r] && !waits[r];
    if (!any)
        return false;
    blame(v, world, late);
    v->finding = root ? RAS_LATE : RAS_CIRCLE;
    if (root) {
        describe_late(a, world, v);
    } else {
        list_late(v, world, ranks, sizeof ranks);
        snprintf(v->text, sizeof v->text, "ranks %s wait for each other, each in another communicator", ranks);
    }
    return true;
}

void ras_judge(const struct ras_answer *a, int world, struct ras_verdict *v)
{
    bool *who = calloc(2 * (size_t)world + 1, sizeof *who), any = false;
    v->finding = RAS_KNOWS_NOTHING;
    v->n_late = 0;
    v->first = -1;
    snprintf(v->text, sizeof v->text, "NCCL's RAS knows of no communicator that is whole");
    for (int c = 0; c < a->n_comms; c++)
        any = any || (a->comms[c].settled && a->comms[c].n > 0);
    if (any && who && !judge_missing(a, world, who, v) && !judge_calls(a, world, who, v) &&
        !judge_late(a, world, who, who + world, v)) {
        v->finding = RAS_ALIKE;
        snprintf(v->text, sizeof v->text, "NCCL's RAS cannot tell: all ranks have launched the same collectives");
    }
    free(who);
}
