/* Decides from samples whether workers that report nothing are quiet, and which rank to blame (quiet.h). */
#include "launcher/hang/quiet.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/base/numbers.h"

#define LONGEST_MS (INT64_C(30) * 86400 * 1000)

static bool used_more(int64_t used_ns, int64_t elapsed_ns, int percent)
{
    return used_ns > QUIET_CPU_NS + elapsed_ns / 100 * percent;
}

bool quiet_is_sign(struct quiet_mark *m, int64_t now, const struct quiet_sample *s)
{
    const int64_t used = s->cpu_ns - m->at.cpu_ns;
    const bool sign = !m->known || s->bytes != m->at.bytes || used_more(used, now - m->ns, QUIET_CPU_PERCENT) ||
                      used_more(s->cpu_ns - m->look_cpu_ns, now - m->look_ns, QUIET_BURST_PERCENT);
    if (sign)
        *m = (struct quiet_mark){.known = true, .ns = now, .at = *s};
    else if (used < 0) /* less than before: a child has ended that nobody waited for */
        m->at.cpu_ns = s->cpu_ns;
    m->look_ns = now;
    m->look_cpu_ns = s->cpu_ns;
    return sign;
}

int64_t quiet_look_ns(int64_t timeout_ns)
{
    const int64_t ns = timeout_ns / QUIET_LOOKS;
    return ns < QUIET_LOOK_MIN_NS ? QUIET_LOOK_MIN_NS : ns > QUIET_LOOK_MAX_NS ? QUIET_LOOK_MAX_NS : ns;
}

bool quiet_all(const struct quiet_rank *v, int world, int64_t now, int64_t timeout_ns, int64_t fresh_ns)
{
    for (int r = 0; r < world; r++)
        if (v[r].heard_ns == 0 || now - v[r].heard_ns > fresh_ns || now - v[r].since_ns < timeout_ns)
            return false;
    return world > 0;
}

/* --- the verdict */

static bool same_place(const struct quiet_rank *a, const struct quiet_rank *b)
{
    return !a->gone && !b->gone && a->stopped == b->stopped && strcmp(a->wait, b->wait) == 0;
}

static int count_at(const struct quiet_rank *v, int world, const struct quiet_rank *place)
{
    int n = 0;
    for (int r = 0; r < world; r++)
        n += same_place(&v[r], place);
    return n;
}

static int first_stopped(const struct quiet_rank *v, int world)
{
    for (int r = 0; r < world; r++)
        if (v[r].stopped)
            return r;
    return -1;
}

/* The first rank that waits in another place than rank `than`; `world`: there is none. */
static int elsewhere(const struct quiet_rank *v, int world, int than)
{
    int r = 0;
    while (r < world && (v[r].gone || same_place(&v[r], &v[than])))
        r++;
    return r;
}

/* -1: there is none. */
static int odd_one_out(const struct quiet_rank *v, int world)
{
    int alive = 0;
    for (int r = 0; r < world; r++)
        alive += !v[r].gone;
    for (int r = 0; r < world && alive > 2; r++) {
        const int others = elsewhere(v, world, r);
        if (!v[r].gone && count_at(v, world, &v[r]) == 1 && others < world &&
            count_at(v, world, &v[others]) == alive - 1)
            return r;
    }
    return -1;
}

static size_t add_place(const struct quiet_rank *v, int world, int of, char *out, size_t cap)
{
    char ranks[160];
    struct ranges in = {.out = ranks, .cap = sizeof ranks};
    for (int r = of; r < world; r++)
        if (same_place(&v[r], &v[of]))
            ranges_add(&in, r);
    const bool many = strpbrk(ranks, ",-");
    const int n = v[of].stopped ? snprintf(out, cap, "rank%s %s stopped by a signal", many ? "s" : "", ranks)
                                : snprintf(out, cap, "rank%s %s wait%s in %s", many ? "s" : "", ranks, many ? "" : "s",
                                           v[of].wait);
    return n < 0 ? 0 : (size_t)n;
}

/* Append each place once, with its first rank. */
static void list_places(const struct quiet_rank *v, int world, char *out, size_t cap)
{
    size_t len = 0;
    for (int r = 0; r < world && len < cap; r++) {
        bool listed = v[r].gone;
        for (int k = 0; k < r && !listed; k++)
            listed = same_place(&v[k], &v[r]);
        if (listed)
            continue;
        len += (size_t)snprintf(out + len, cap - len, "%s", len ? "; " : "");
        if (len < cap)
            len += add_place(v, world, r, out + len, cap - len);
    }
}

void quiet_blame(const struct quiet_rank *v, int rank, struct hang_verdict *ret)
{
    *ret = (struct hang_verdict){.rank = rank};
    if (v->stopped)
        snprintf(ret->where, sizeof ret->where, "while stopped by a signal");
    else
        snprintf(ret->where, sizeof ret->where, "in %s", v->wait);
    snprintf(ret->cause, sizeof ret->cause, "rank %d hung %s", rank, ret->where);
}

void quiet_judge(const struct quiet_rank *v, int world, double seconds, struct hang_verdict *ret)
{
    char places[400] = "";
    const int stopped = first_stopped(v, world);
    const int blamed = stopped >= 0 ? stopped : odd_one_out(v, world);
    if (blamed >= 0)
        quiet_blame(&v[blamed], blamed, ret);
    else
        *ret = (struct hang_verdict){
            .all = true, .where = "without a sign of life", .cause = "all ranks hung without a sign of life"};
    list_places(v, world, places, sizeof places);
    snprintf(ret->text, sizeof ret->text, "no worker has given a sign of life for %.1f s: %s", seconds, places);
}

/* --- for group rank 0 */

int quiet_write(struct buf *out, int64_t now, int base, const struct quiet_rank *v, int n)
{
    const int64_t since = n > 0 ? v[0].since_ns : now;
    TRY(buf_printf(out, "%" PRId64 " %d", (now - since) / 1000000, base));
    for (int i = 0; i < n; i++)
        TRY(buf_printf(out, " %c:%s", v[i].gone ? 'X' : v[i].stopped ? 'T' : 'S', v[i].wait));
    return 0;
}

static bool parse_rank(const char *word, struct quiet_rank *ret)
{
    if (!strchr("STX", word[0]) || word[1] != ':' || !word[2] || strlen(word + 2) >= sizeof ret->wait)
        return false;
    ret->gone = word[0] == 'X';
    ret->stopped = word[0] == 'T';
    snprintf(ret->wait, sizeof ret->wait, "%s", word + 2);
    for (char *p = ret->wait; *p; p++) /* it is printed on terminals */
        *p = (unsigned char)*p < 0x20 || (unsigned char)*p > 0x7e ? '?' : *p;
    return true;
}

static bool parse_words(char *text, int64_t now, struct quiet_rank *fresh, int world, int *ret_base, int *ret_n)
{
    char *save = NULL, *end = NULL;
    const char *ms = strtok_r(text, " ", &save), *base = strtok_r(NULL, " ", &save), *word;
    long long quiet_ms = ms ? strtoll(ms, &end, 10) : -1;
    if (!base || *end || quiet_ms < 0 || quiet_ms > LONGEST_MS)
        return false;
    const long first = strtol(base, &end, 10);
    if (*end || first < 0 || first >= world)
        return false;
    *ret_base = (int)first;
    for (*ret_n = 0; (word = strtok_r(NULL, " ", &save)); (*ret_n)++) {
        struct quiet_rank *v = &fresh[*ret_base + *ret_n];
        if (*ret_base + *ret_n >= world || !parse_rank(word, v))
            return false;
        v->heard_ns = now;
        v->since_ns = now - quiet_ms * 1000000;
    }
    return *ret_n > 0;
}

bool quiet_parse(const char *text, size_t n, int64_t now, struct quiet_rank *v, int world, int *ret_base, int *ret_n)
{
    char *copy = strndup(text, n);
    struct quiet_rank *fresh = calloc((size_t)world, sizeof *fresh);
    const bool good = copy && fresh && parse_words(copy, now, fresh, world, ret_base, ret_n);
    if (good)
        memcpy(v + *ret_base, fresh + *ret_base, (size_t)*ret_n * sizeof *v);
    free(copy);
    free(fresh);
    return good;
}
