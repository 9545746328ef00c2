/* Saves the call stacks of hung workers, and what PyTorch's Flight Recorder knows of them (hang_watch.h). */
#include "launcher/hang/hang_watch_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/container_of.h"
#include "common/base/err.h"
#include "common/json/json.h"
#include "launcher/hang/gather.h"
#include "launcher/output/log_layout.h"
#include "launcher/output/logmux.h"
#include "launcher/witness/flight.h"

#define SAVE_MS 5000   /* ms for everything; after that the round ends without the rest */
#define THREADS 1      /* more would not help: a tool that hangs delays the others only for the time above */
#define FLIGHT_MS 1500 /* ms of SAVE_MS for the Flight Recorder of one process */
#define FLIGHT_THREADS 8

/* --- Flight Recorders: asked before a tool stops the processes */

struct flight {
    enum flight_way way;
    cJSON *tree; /* of FLIGHT_SOCKET; NULL: it cannot be read */
};

static void free_flight(void *more)
{
    struct flight *f = more;
    cJSON_Delete(f->tree);
    free(f);
}

static void look_at_flight(struct gathered *v, const atomic_bool *cancel)
{
    struct flight *f = calloc(1, sizeof *f);
    struct err e;
    (void)cancel; /* it has its own time */
    if (!f)
        return;
    f->way = flight_ask(v->pid, v->rank, clock_ms() + FLIGHT_MS, &v->text);
    if (f->way == FLIGHT_SOCKET && json_read_text(&v->text, "trace", &f->tree, &e) < 0)
        f->tree = NULL;
    v->more = f;
    v->free_more = free_flight;
}

/* "…/hang-rank-1.txt" -> "…/flight-rank-1.json" */
static void flight_path(const struct gathered *stacks, char *out, size_t cap)
{
    char tail[32];
    const int n = snprintf(tail, sizeof tail, "hang-rank-%d.txt", stacks->rank);
    snprintf(out, cap, "%.*sflight-rank-%d.json", (int)strlen(stacks->path) - n, stacks->path, stacks->rank);
}

/* What a Flight Recorder answered; NULL: it did not in time. */
static const struct flight *flight_at(struct hang_watch *w, int i)
{
    struct gathered *v = w->flights ? gather_at(w->flights, i) : NULL;
    return v && atomic_load(&v->done) ? v->more : NULL;
}

static void write_flights(struct hang_watch *w)
{
    char path[LOG_PATH_MAX + 80];
    for (int i = 0; i < gather_count(w->save); i++) {
        const struct flight *f = flight_at(w, i);
        if (!f || f->way != FLIGHT_SOCKET)
            continue;
        const struct gathered *v = gather_at(w->flights, i);
        flight_path(gather_at(w->save, i), path, sizeof path);
        logmux_write_log(w->o.mux, path, v->text.data, v->text.len);
    }
}

static void print_mismatch(struct hang_watch *w)
{
    const int n = gather_count(w->save);
    struct flight_trace *traces = calloc((size_t)n, sizeof *traces);
    char text[320];
    for (int i = 0; traces && i < n; i++) {
        const struct flight *f = flight_at(w, i);
        traces[i] = (struct flight_trace){.rank = gather_at(w->save, i)->rank, .tree = f ? f->tree : NULL};
    }
    if (traces && flight_mismatch(traces, n, text, sizeof text))
        logmux_print(w->o.mux, "%s", text);
    free(traces);
}

static void print_flights(struct hang_watch *w)
{
    static const char *const ways[] = {[FLIGHT_SOCKET] = "by the debug sockets of",
                                       [FLIGHT_PIPE] = "a dump that was asked for by the pipes of",
                                       [FLIGHT_DUMP] = "a dump that PyTorch wrote for"};
    print_mismatch(w);
    for (int way = FLIGHT_SOCKET; way <= FLIGHT_DUMP; way++) {
        char path[LOG_PATH_MAX + 80];
        int first = -1, n = 0;
        for (int i = gather_count(w->save) - 1; i >= 0; i--) {
            const struct flight *f = flight_at(w, i);
            if (f && f->way == (enum flight_way)way) {
                first = i;
                n++;
            }
        }
        if (n == 0)
            continue;
        flight_path(gather_at(w->save, first), path, sizeof path);
        logmux_print(w->o.mux, "Flight Recorder, %s %d workers: %s%s", ways[way], n,
                     way == FLIGHT_SOCKET ? path : gather_at(w->flights, first)->text.data,
                     n > 1 ? " and beside it" : "");
    }
}

/* --- stacks */

/* Have the output process write the stacks, because the disk may hang. */
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
    print_flights(w);
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
    write_flights(w);
    print_saved(w);
    go_on(w);
}

void hang_abandon_save(struct hang_watch *w)
{
    gather_drop(w->flights);
    gather_drop(w->save);
    w->flights = w->save = NULL;
}

static void on_save_late(uv_timer_t *t)
{
    struct hang_watch *w = container_of(t, struct hang_watch, timer);
    logmux_print(w->o.mux, "the stacks of all threads were not saved within %d s; going on", SAVE_MS / 1000);
    go_on(w);
}

static bool start_stacks(struct hang_watch *w)
{
    const struct gather_options o = {.loop = w->o.loop, .threads = THREADS, .done = on_saved, .arg = w};
    return gather_start(w->save, &o, NULL) == 0;
}

static void on_flights(void *arg)
{
    struct hang_watch *w = arg;
    if (!start_stacks(w))
        go_on(w);
}

/* Ask the Flight Recorders of the same processes, in the same order. */
static bool start_flights(struct hang_watch *w)
{
    const int n = gather_count(w->save);
    const struct gather_options o = {
        .loop = w->o.loop, .threads = FLIGHT_THREADS, .look = look_at_flight, .done = on_flights, .arg = w};
    w->flights = gather_new(n);
    for (int i = 0; w->flights && i < n; i++) {
        gather_at(w->flights, i)->rank = gather_at(w->save, i)->rank;
        gather_at(w->flights, i)->pid = gather_at(w->save, i)->pid;
    }
    return w->flights && gather_start(w->flights, &o, NULL) == 0;
}

/* Add a worker whose stacks to save. False: there is no place for the file. The blamed worker comes first, in case
 * time runs out. */
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
    if (n == 0 || (!start_flights(w) && !start_stacks(w))) {
        hang_abandon_save(w);
        return false;
    }
    uv_timer_start(&w->timer, on_save_late, SAVE_MS, 0);
    return true;
}
