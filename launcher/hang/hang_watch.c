/* Watches the workers' pages for hangs, and acts when hang.h finds one (hang_watch.h). */
#include "launcher/hang/hang_watch_internal.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/clock.h"
#include "common/base/container_of.h"
#include "common/base/err.h"
#include "launcher/hang/gather.h"
#include "launcher/hang/stacks.h"
#include "launcher/output/logmux.h"

/* a look that is late by so much shows that crun, or the whole machine, was stopped */
#define LATE_NS INT64_C(1000000000)
#define FOREIGN_MS 10000 /* ms for another node to save its stacks and end the round */

static void on_look(uv_timer_t *t);

void hang_read_workers(struct hang_watch *w)
{
    for (int i = 0; i < w->n; i++) {
        w->workers[i] = (struct hang_worker){0};
        w->o.read_worker(w->o.arg, i, &w->workers[i]);
    }
}

/* --- crun's own stops */

static _Atomic int64_t continued_ns; /* a handler has no argument */

static void on_continue(int signo)
{
    const int saved = errno;
    atomic_store(&continued_ns, clock_ns());
    errno = saved;
}

static void excuse_own_stops(struct hang_watch *w, int64_t now)
{
    const int64_t continued = atomic_load(&continued_ns);
    if (w->planned_ns && now - w->planned_ns > LATE_NS)
        hang_excuse(&w->hang, now);
    else if (continued > w->hang.excused_ns)
        hang_excuse(&w->hang, continued);
}

/* --- looking */

/* The node of the rank to blame has not ended the round in time: end it here. */
static void on_foreign_late(uv_timer_t *t)
{
    struct hang_watch *w = container_of(t, struct hang_watch, timer);
    w->verdict.rank = w->quiet.base;
    w->verdict.all = true;
    w->o.found(w->o.arg, clock_ns(), &w->verdict);
    w->o.hung(w->o.arg, &w->verdict);
}

void hang_tell(struct hang_watch *w)
{
    uv_timer_stop(&w->timer);
    if (w->quiet.foreign) {
        w->quiet.foreign = false;
        if (w->quiet.leads)
            uv_timer_start(&w->timer, on_foreign_late, FOREIGN_MS, 0);
        return;
    }
    w->o.hung(w->o.arg, &w->verdict);
}

void hang_save_and_tell(struct hang_watch *w)
{
    if (!hang_save_stacks(w, w->verdict.rank, w->verdict.text, true))
        hang_tell(w);
}

/* Look for stopped and debugged workers. Those that waited for one in a debugger get their full time again once the
 * debugger is gone. */
void hang_read_processes(struct hang_watch *w, int64_t now)
{
    bool traced = false;
    for (int i = 0; i < w->n; i++) {
        struct hang_worker *k = &w->workers[i];
        if (!k->gone && !stacks_look(k->pid, &k->stopped, &k->traced))
            k->gone = true;
        traced = traced || (!k->gone && k->traced);
    }
    if (traced || w->was_traced)
        hang_excuse(&w->hang, now);
    w->was_traced = traced;
}

void hang_plan(struct hang_watch *w, int64_t now)
{
    w->planned_ns = hang_next(&w->hang, now, w->workers, w->n);
    const int64_t wait = w->planned_ns > now ? w->planned_ns - now : 0;
    uv_update_time(w->o.loop);
    uv_timer_start(&w->timer, on_look, (uint64_t)(wait / 1000000 + 1), 0);
}

static void end_hang(struct hang_watch *w, int64_t now)
{
    logmux_print(w->o.mux, "%s", w->verdict.text);
    w->o.found(w->o.arg, now, &w->verdict);
    hang_save_and_tell(w);
}

static void on_look(uv_timer_t *t)
{
    struct hang_watch *w = container_of(t, struct hang_watch, timer);
    const int64_t now = clock_ns();
    if (!w->o.is_running(w->o.arg))
        return;
    hang_read_workers(w);
    excuse_own_stops(w, now);
    if (w->hang.o.fixed_ns && !hang_tells(w->workers, w->n) && hang_quiet_look(w, now))
        return;
    if (hang_due(&w->hang, now, w->workers, w->n)) {
        hang_read_processes(w, now);
        if (hang_judge(&w->hang, now, w->workers, w->n, &w->verdict)) {
            end_hang(w, now);
            return;
        }
    }
    hang_plan(w, now);
}

/* --- life */

int hang_watch_open(struct hang_watch **ret, const struct hang_watch_options *o, struct err *e)
{
    *ret = NULL;
    if (o->hang.off)
        return 0;
    struct hang_watch *w = calloc(1, sizeof *w);
    if (!w || !(w->workers = calloc((size_t)o->workers, sizeof *w->workers))) {
        free(w);
        return err_errno(e, ENOMEM, "hang detection");
    }
    w->o = *o;
    w->n = o->workers;
    hang_init(&w->hang, &o->hang);
    uv_timer_init(o->loop, &w->timer);
    struct sigaction a = {.sa_handler = on_continue, .sa_flags = SA_RESTART};
    sigaction(SIGCONT, &a, NULL);
    *ret = w;
    return o->hang.witness_ns && hang_witness_open(w) < 0 ? err_errno(e, ENOMEM, "hang detection") : 0;
}

int hang_watch_begin_round(struct hang_watch *w, int base, int world, bool leads)
{
    if (!w)
        return 0;
    const int64_t now = clock_ns();
    TRY(hang_quiet_begin(w, now, base, world, leads));
    TRY(hang_witness_begin(w, now, base, world, leads));
    hang_begin_round(&w->hang, now);
    hang_excuse(&w->hang, now); /* workers that were held have made no step meanwhile */
    hang_read_workers(w);
    hang_plan(w, now);
    return 0;
}

const char *hang_watch_text(const struct hang_watch *w)
{
    return w ? w->verdict.text : "";
}

void hang_watch_progressed(struct hang_watch *w)
{
    if (!w || w->save || !w->o.is_running(w->o.arg))
        return;
    hang_read_workers(w);
    hang_plan(w, clock_ns());
}

void hang_watch_go_on(struct hang_watch *w)
{
    if (!w)
        return;
    hang_excuse(&w->hang, clock_ns());
    hang_watch_progressed(w);
}

void hang_watch_end_round(struct hang_watch *w)
{
    if (!w)
        return;
    hang_abandon_save(w);
    uv_timer_stop(&w->timer);
    w->planned_ns = 0;
    hang_quiet_end(w);
    hang_witness_end(w);
    hang_read_workers(w);
    hang_end_round(&w->hang, w->workers, w->n);
}

static void on_closed(uv_handle_t *h)
{
    struct hang_watch *w = container_of((uv_timer_t *)h, struct hang_watch, timer);
    hang_quiet_end(w);
    free(w->workers);
    free(w);
}

void hang_watch_close(struct hang_watch *w)
{
    if (!w)
        return;
    hang_abandon_save(w);
    hang_witness_close(w);
    gather_wait();
    uv_close((uv_handle_t *)&w->timer, on_closed);
}
