/* Samples the signs of life of workers that report nothing (quiet.h), and exchanges them with the job's other nodes. */
#include "launcher/hang/hang_watch_internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/base/err.h"
#include "launcher/hang/signs.h"
#include "launcher/output/logmux.h"

#define HUNG "HUNG "                     /* an answer: followed by the rank to blame, -1: none stands out */
#define LATE_TELL_NS INT64_C(3000000000) /* time that a report of another node may take to arrive */

/* --- this node */

static struct quiet_rank *own_ranks(struct hang_watch *w)
{
    return w->quiet.ranks + (w->quiet.leads ? w->quiet.base : 0);
}

/* Has any worker given a sign of life? If a witness names workers, only theirs count: the others poll, and it is not
 * known who changed a key of the store. */
static bool any_sign(struct hang_watch *w, int64_t now)
{
    const uint64_t changes = w->quiet.leads ? w->o.store_changes(w->o.arg) : 0;
    const bool naming = hang_witness_is_naming(w);
    bool any = changes != w->quiet.changes && !naming, started = naming;
    w->quiet.changes = changes;
    for (int i = 0; i < w->n; i++) {
        struct quiet_sample s;
        const struct hang_worker *k = &w->workers[i];
        if (k->gone || (naming && !hang_witness_names(w, k->rank)) || !signs_read(k->pid, &s))
            continue;
        started = true;
        any = quiet_is_sign(&w->quiet.marks[i], now, &s) || any;
    }
    return any || !started;
}

static void note_places(struct hang_watch *w, int64_t now, int64_t since)
{
    struct quiet_rank *v = own_ranks(w);
    for (int i = 0; i < w->n; i++) {
        const struct hang_worker *k = &w->workers[i];
        v[i] = (struct quiet_rank){.heard_ns = now, .since_ns = since, .gone = k->gone, .stopped = k->stopped};
        signs_place(k->pid, &v[i]);
        v[i].informed = true;
    }
}

/* Since when all workers have been quiet; 0: not long enough, or a debugger looks into one. */
static int64_t quiet_since(struct hang_watch *w, int64_t now)
{
    if (any_sign(w, now))
        w->quiet.sign_ns = now;
    const int64_t since = w->quiet.sign_ns > w->hang.excused_ns ? w->quiet.sign_ns : w->hang.excused_ns;
    if (now - since < w->hang.o.fixed_ns)
        return 0;
    hang_read_processes(w, now);
    return w->was_traced ? 0 : since;
}

/* --- all nodes */

static int64_t fresh_ns(const struct hang_watch *w)
{
    return 2 * quiet_look_ns(w->hang.o.fixed_ns) + LATE_TELL_NS;
}

/* Have all nodes got the verdict? Each gets it with the answer to its next report. */
static bool all_are_informed(const struct hang_watch *w, int64_t now)
{
    bool informed = true;
    for (int r = 0; r < w->quiet.world; r++)
        informed = informed && w->quiet.ranks[r].informed;
    return informed || now - w->quiet.found_ns > fresh_ns(w);
}

static bool is_ours(const struct hang_watch *w, int rank)
{
    return rank >= w->quiet.base && rank < w->quiet.base + w->n;
}

static int blamed(const struct hang_watch *w)
{
    return w->verdict.all ? -1 : w->verdict.rank;
}

static void end_quiet(struct hang_watch *w, int64_t now)
{
    logmux_print(w->o.mux, "%s", w->verdict.text);
    w->quiet.foreign = !w->verdict.all && !is_ours(w, w->verdict.rank);
    if (!w->quiet.foreign)
        w->o.found(w->o.arg, now, &w->verdict);
    hang_save_and_tell(w);
}

/* Are the workers that others wait for quiet, or all, if none is named? */
static bool all_are_quiet(const struct hang_watch *w, int64_t now)
{
    const struct hang_quiet *q = &w->quiet;
    if (!hang_witness_is_naming(w))
        return quiet_all(q->ranks, q->world, now, w->hang.o.fixed_ns, fresh_ns(w));
    for (int r = 0; r < q->world; r++)
        if (hang_witness_names(w, r) && !quiet_all(&q->ranks[r], 1, now, w->hang.o.fixed_ns, fresh_ns(w)))
            return false;
    return true;
}

static void judge(struct hang_watch *w, double seconds)
{
    const struct hang_quiet *q = &w->quiet;
    struct hang_verdict *v = &w->verdict;
    const char *witness = hang_witness_text(w);
    char text[sizeof v->text];
    int blamed = -1;
    quiet_judge(q->ranks, q->world, seconds, v);
    for (int r = 0; r < q->world; r++)
        if (hang_witness_names(w, r) && (blamed < 0 || (q->ranks[r].stopped && !q->ranks[blamed].stopped)))
            blamed = r;
    snprintf(text, sizeof text, "%.*s", (int)sizeof text - 1, v->text);
    if (blamed >= 0) {
        quiet_blame(&q->ranks[blamed], blamed, v);
        snprintf(v->text, sizeof v->text, "%s, and no sign of life has come for %.1f s: rank %d %s%s", witness, seconds,
                 blamed, q->ranks[blamed].stopped ? "" : "waits ", v->where + (q->ranks[blamed].stopped ? 6 : 0));
    } else if (witness[0]) {
        snprintf(v->text, sizeof v->text, "%.300s. %.200s", text, witness);
    }
}

static bool lead(struct hang_watch *w, int64_t now, int64_t since)
{
    struct hang_quiet *q = &w->quiet;
    if (!all_are_quiet(w, now)) {
        q->found_ns = 0;
        return false;
    }
    if (q->found_ns == 0) {
        q->found_ns = now;
        for (int r = 0; r < q->world; r++)
            q->ranks[r].informed = is_ours(w, r);
        judge(w, (double)(now - since) / 1e9);
    }
    const bool ends_here = w->verdict.all || is_ours(w, w->verdict.rank);
    if (ends_here && !all_are_informed(w, now)) /* other nodes must save stacks, too */
        return false;
    end_quiet(w, now);
    return true;
}

static void tell(struct hang_watch *w, int64_t now)
{
    struct buf text = {0};
    if (quiet_write(&text, now, w->quiet.base, w->quiet.ranks, w->n) == 0)
        w->o.tell_quiet(w->o.arg, text.data, text.len);
    buf_free(&text);
}

bool hang_quiet_look(struct hang_watch *w, int64_t now)
{
    const int64_t since = quiet_since(w, now);
    if (since == 0) {
        for (int i = 0; i < w->n; i++)
            own_ranks(w)[i].heard_ns = 0;
        w->quiet.found_ns = 0;
        return false;
    }
    note_places(w, now, since);
    if (w->quiet.leads)
        return lead(w, now, since);
    tell(w, now);
    return false;
}

bool hang_watch_hear(struct hang_watch *w, const char *text, size_t n, char *answer, size_t cap)
{
    int base, count;
    bool good;
    if (!w || !w->quiet.leads || !w->quiet.ranks)
        return false;
    if (hang_witness_hear(w, text, n, answer, cap, &good))
        return good;
    if (!quiet_parse(text, n, clock_ns(), w->quiet.ranks, w->quiet.world, &base, &count))
        return false;
    if (w->quiet.found_ns == 0)
        return true;
    for (int r = base; r < base + count; r++)
        w->quiet.ranks[r].informed = true;
    snprintf(answer, cap, HUNG "%d", blamed(w));
    return true;
}

/* The answer names only the rank to blame; nothing else about the hang is known here. */
void hang_watch_answer(struct hang_watch *w, const char *answer)
{
    int rank;
    if (w && hang_witness_answer(w, answer))
        return;
    if (!w || w->save || !w->quiet.ranks || !w->o.is_running(w->o.arg) || sscanf(answer, HUNG "%d", &rank) != 1)
        return;
    const int64_t now = clock_ns();
    const double seconds = (double)(now - w->quiet.sign_ns) / 1e9;
    struct hang_verdict *v = &w->verdict;
    *v = (struct hang_verdict){.rank = rank};
    if (is_ours(w, rank))
        quiet_blame(&w->quiet.ranks[rank - w->quiet.base], rank, v);
    snprintf(v->text, sizeof v->text, "no worker of the job has given a sign of life for %.1f s; %s", seconds,
             is_ours(w, rank) ? v->cause : "no rank of this node stands out");
    end_quiet(w, now);
}

/* --- life */

int hang_quiet_begin(struct hang_watch *w, int64_t now, int base, int world, bool leads)
{
    hang_quiet_end(w);
    w->quiet = (struct hang_quiet){.base = base, .world = world, .leads = leads, .sign_ns = now};
    w->quiet.marks = calloc((size_t)w->n, sizeof *w->quiet.marks);
    w->quiet.ranks = calloc((size_t)(leads ? world : w->n), sizeof *w->quiet.ranks);
    return w->quiet.marks && w->quiet.ranks ? 0 : -ENOMEM;
}

void hang_quiet_end(struct hang_watch *w)
{
    free(w->quiet.marks);
    free(w->quiet.ranks);
    w->quiet.marks = NULL;
    w->quiet.ranks = NULL;
}
