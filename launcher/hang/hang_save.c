/* Saving the call stacks of workers that hang (hang_watch.h). */
#include "launcher/hang/hang_watch_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/container_of.h"
#include "common/base/err.h"
#include "launcher/hang/gather.h"
#include "launcher/output/log_layout.h"
#include "launcher/output/logmux.h"

#define SAVE_MS 5000 /* for the stacks; then the round ends without the rest */
#define THREADS 1    /* tools that hang hold up no others: the time is bounded */

/* By the output process, for the disk may hang. */
static void write_saved(struct hang_watch *w)
{
    for (int i = 0; i < gather_count(w->save); i++) {
        const struct gathered *v = gather_at(w->save, i);
        if (!v->why[0])
            logmux_write_log(w->o.mux, v->path, v->text.data, v->text.len);
    }
}

static void print_saved(struct hang_watch *w)
{
    const struct gathered *good = NULL, *bad = NULL;
    const int rank = w->save_rank;
    int files = 0;
    for (int i = 0; i < gather_count(w->save); i++) {
        const struct gathered *v = gather_at(w->save, i);
        if (v->rank == rank && v->top) {
            logmux_print(w->o.mux, "rank %d, main thread:", rank);
            logmux_print_text(w->o.mux, v->top);
        }
        if (v->why[0]) {
            bad = bad ? bad : v;
        } else {
            files++;
            good = good && good->rank == rank ? good : v;
        }
    }
    if (good)
        logmux_print(w->o.mux, "what all threads of %d workers were doing: %s%s%s", files, good->path,
                     files > 1 ? " and beside it" : "",
                     w->o.keeps_stacks ? "" : " (until crun ends; --log-dir keeps it)");
    if (bad)
        logmux_print(w->o.mux, "what the threads of rank %d were doing is not known: %s", bad->rank, bad->why);
}

static void go_on(struct hang_watch *w)
{
    hang_abandon_save(w);
    if (w->save_ends)
        hang_tell(w);
    else
        hang_plan(w, clock_ns());
}

static void on_saved(void *arg)
{
    struct hang_watch *w = arg;
    write_saved(w);
    print_saved(w);
    go_on(w);
}

void hang_abandon_save(struct hang_watch *w)
{
    gather_drop(w->save);
    w->save = NULL;
}

static void on_save_late(uv_timer_t *t)
{
    struct hang_watch *w = container_of(t, struct hang_watch, timer);
    logmux_print(w->o.mux, "the stacks of all threads were not saved within %d s; going on", SAVE_MS / 1000);
    go_on(w);
}

/* False: there is nowhere to save this worker's. The one that is blamed comes first, as time may run out. */
static bool add(struct hang_watch *w, const struct hang_worker *k, int n, const char *why)
{
    struct gathered *v = gather_at(w->save, n), *first = gather_at(w->save, 0);
    char path[LOG_PATH_MAX + 64], head[640];
    if (k->gone || !w->o.stacks_path(w->o.arg, k->rank, path, sizeof path))
        return false;
    snprintf(head, sizeof head, "rank %d: %s", k->rank, why);
    if (k->rank == w->save_rank) {
        const struct gathered before = *first;
        *v = before;
        v = first;
    }
    v->rank = k->rank;
    v->pid = k->pid;
    v->path = strdup(path);
    v->head = strdup(head);
    return true;
}

/* False: there is nowhere to save anything. */
bool hang_save_stacks(struct hang_watch *w, int rank, const char *why, bool ends)
{
    int n = 0;
    if (!(w->save = gather_new(w->n)))
        return false;
    w->save_rank = rank;
    w->save_ends = ends;
    hang_read_workers(w);
    for (int i = 0; i < w->n; i++)
        n += add(w, &w->workers[i], n, why);
    gather_shorten(w->save, n);
    const struct gather_options o = {.loop = w->o.loop, .threads = THREADS, .done = on_saved, .arg = w};
    if (n == 0 || gather_start(w->save, &o, NULL) < 0) {
        hang_abandon_save(w);
        return false;
    }
    uv_timer_start(&w->timer, on_save_late, SAVE_MS, 0);
    return true;
}
