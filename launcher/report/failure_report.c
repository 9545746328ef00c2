/* Makes the failure report of a job: collects facts, sends or gathers them, prints (failure_report.h). */
#include "launcher/report/failure_report.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/base/log.h"
#include "common/crun/crun_page.h"
#include "common/include/crun.h"
#include "common/job/exitcode.h"
#include "common/job/failure_record.h"
#include "common/rdzv/machine/rdzv.h"
#include "common/rdzv/wire/rdzv_wire.h"
#include "launcher/base/oom.h"
#include "launcher/base/virtual_rank.h"
#include "launcher/output/log_layout.h"
#include "launcher/output/logmux.h"
#include "launcher/rendezvous/rdzv_dial.h"
#include "launcher/report/causes.h"
#include "launcher/report/core_path.h"
#include "launcher/report/failure.h"
#include "launcher/report/failure_files.h"
#include "launcher/report/failure_share.h"

/* number of a node's workers that the report shows */
#define OWN_MAX 32

struct failure_report {
    struct failure_report_options o;
    struct failure_share *share;
    struct causes causes;
    uv_timer_t *late; /* time-out for last words; allocated separately, because it closes after we are freed */
    bool is_late;
};

/* --- the failures of this node */

static double wall_time(int64_t ended_ns)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + (double)(now.tv_nsec - (clock_ns() - ended_ns)) / 1e9;
}

/* Where its core is, if it is. */
static const char *core_of(const struct failure_report *f, const struct failure_worker *w, char *out, size_t cap)
{
    char folder[2048];
    out[0] = '\0';
    if (!w->ending.core || !getcwd(folder, sizeof folder))
        return out;
    const struct core_facts facts = {.pid = w->pid,
                                     .signo = w->ending.value,
                                     .program = f->o.program_path,
                                     .host = f->o.host,
                                     .folder = folder,
                                     .time = (long long)wall_time(w->ended_ns)};
    core_path_name(&facts, out, cap);
    return out;
}

void failure_report_note(struct failure_report *f, const struct failure_worker *w)
{
    char core[4096];
    if (failure_is(w))
        logmux_ask(f->o.mux, w->local_rank, w->hung[0] ? NULL : f->o.error_path(f->o.arg, w->local_rank),
                   core_of(f, w, core, sizeof core));
}

void failure_report_note_memory(struct failure_report *f, const struct failure_worker *all, int n)
{
    causes_note_memory(&f->causes, all, n);
}

bool failure_report_is_oom(struct failure_report *f, const struct failure_worker *w, const struct failure_worker *all,
                           int n)
{
    return causes_is_oom(&f->causes, w, all, n);
}

static void on_late(uv_timer_t *t)
{
    ((struct failure_report *)t->data)->is_late = true;
}

static void wait_for_answers(struct failure_report *f)
{
    f->is_late = false;
    uv_timer_start(f->late, on_late, FAILURE_WORDS_MS, 0);
    while (!logmux_has_answers(f->o.mux) && !f->is_late)
        uv_run(f->o.loop, UV_RUN_ONCE);
    uv_timer_stop(f->late);
}

static void find_message(const struct failure_report *f, const struct failure_worker *w,
                         const struct logmux_words *printed, struct failure_words *words)
{
    const char *path = f->o.error_path(f->o.arg, w->local_rank);
    if (w->hung[0]) {
        words->message = f->o.hang_text(f->o.arg);
        words->message_from = "seen by crun";
    } else if (path && printed && printed->found_record) {
        words->message = printed->record.message;
        /* without a log folder the record is in a temporary folder, which is removed at the end */
        words->message_from = f->o.logs->root[0] ? path : "error.json";
    } else if ((words->message = f->o.error_text(f->o.arg, w->local_rank))) {
        words->message_from = "reported through libcrun";
    } else if (printed && !printed->has_record) {
        words->message = printed->has_tail ? "its error record was not read within a second: a disk hangs"
                                           : "its error record was not read within a second";
        words->message_from = "seen by crun";
    }
}

/* "": none is known of. */
static const char *core_text(const struct logmux_words *printed, char *out, size_t cap)
{
    out[0] = '\0';
    if (printed && printed->core)
        snprintf(out, cap, "%s%s", printed->core,
                 printed->core[0] == '/' && !printed->found_core ? " (expected there)" : "");
    return out;
}

/* The device of this worker in CUDA_VISIBLE_DEVICES or HIP_VISIBLE_DEVICES, if one is set. */
static const char *find_gpu(int local, struct virtual_rank *device)
{
    if (!getenv("CUDA_VISIBLE_DEVICES") && !getenv("HIP_VISIBLE_DEVICES"))
        return NULL;
    if (virtual_rank_device(local, device, NULL) < 0)
        return NULL;
    const char *value = strchr(device->cuda, '=');
    return value && value[1] ? value + 1 : NULL;
}

/* The step and phase that the worker reached, if it reported them. */
static void find_progress(const struct crun_page *page, struct failure_words *words)
{
    words->step = -1;
    if (!page || !atomic_load(&page->attached) || (!atomic_load(&page->phase_ns) && !atomic_load(&page->last_step_ns)))
        return;
    words->phase = crun_phase_name((enum crun_phase)atomic_load(&page->phase));
    if (atomic_load(&page->last_step_ns))
        words->step = (int64_t)atomic_load(&page->step);
}

/* The last line that is not empty; the caller frees out. */
static const char *last_line(const struct lines_tail *tail, struct buf *out)
{
    if (!tail || lines_tail_render(tail, FAILURE_TAIL_LINES, "", out) < 0 || !out->len)
        return NULL;
    while (out->len > 0 && (out->data[out->len - 1] == '\n' || out->data[out->len - 1] == ' '))
        out->data[--out->len] = '\0';
    const char *line = strrchr(out->data, '\n');
    return line ? line + 1 : out->data;
}

/* The cause of a failure: first what memory or the worker's own words say, then a fault of its machine. Of a worker
 * that hung only that. */
static const char *find_cause(struct failure_report *f, const struct failure_scene *now, const struct failure_worker *w,
                              const char *message, const struct lines_tail *tail, char out[CAUSES_TEXT_MAX])
{
    struct buf lines = {0};
    if (w->ending.oom && !w->hung[0])
        return causes_memory(&f->causes, f->o.oom, w, now->workers, now->n, out);
    const char *found = w->hung[0] ? NULL : causes_words(w, message, last_line(tail, &lines), out);
    buf_free(&lines);
    found = found ? found : causes_kills(&f->causes, w, now->workers, now->n, out);
    double before_s;
    const char *fault = found ? NULL : causes_fault(&f->causes, w->ended_ns / 1000000, w->hung[0], &before_s);
    if (fault && before_s > 0)
        snprintf(out, CAUSES_TEXT_MAX, ", %.0f s after %.200s", before_s, fault);
    else if (fault)
        snprintf(out, CAUSES_TEXT_MAX, ", after %.200s", fault);
    return fault ? out : found;
}

/* A fault of this machine, for the first line: "eth0 went down, 20 s before". NULL: none was seen. */
static const char *own_fault(const struct failure_report *f, const struct failure_scene *now, char out[CAUSES_TEXT_MAX])
{
    const int first = failure_first(now->workers, now->n);
    const int64_t failed_ms = first >= 0 ? now->workers[first].ended_ns / 1000000 : clock_ms();
    double before_s;
    const char *fault = causes_fault(&f->causes, failed_ms, now->end->cause.exit_code == EXIT_HUNG, &before_s);
    if (!fault || before_s == 0)
        return fault;
    snprintf(out, CAUSES_TEXT_MAX, "%.200s, %.0f s before", fault, before_s);
    return out;
}

static cJSON *describe(struct failure_report *f, const struct failure_scene *now, const struct failure_worker *w,
                       bool with_tail)
{
    const struct logmux_words *printed = logmux_words(f->o.mux, w->local_rank);
    struct virtual_rank device;
    char because[CAUSES_TEXT_MAX], xid[CAUSES_XIDS_MAX], link[CAUSES_TEXT_MAX];
    char core[4096], memory[CGROUP_PATH_MAX + 128], output[FAILURE_OUTPUT_MAX], late[FAILURE_OUTPUT_MAX + 64];
    struct failure_words words = {.host = f->o.host, .node = f->o.node, .time = wall_time(w->ended_ns)};
    find_message(f, w, printed, &words);
    find_progress(f->o.page(f->o.arg, w->local_rank), &words);
    words.core = core_text(printed, core, sizeof core)[0] ? core : NULL;
    words.memory = w->kills > 0 ? oom_kills_text(f->o.oom, memory, sizeof memory) : NULL;
    words.xid = with_tail ? causes_xids(&f->causes, xid) : NULL;
    words.link = with_tail ? causes_link(&f->causes, w, link) : NULL;
    words.because = find_cause(f, now, w, words.message, printed && printed->has_tail ? &printed->tail : NULL, because);
    words.gpu = find_gpu(w->local_rank, &device);
    words.tail = with_tail && printed && printed->has_tail ? &printed->tail : NULL;
    if (with_tail && printed && !printed->has_tail) {
        snprintf(late, sizeof late, "%s did not answer within %d ms", f->o.output_text(f->o.arg, output),
                 FAILURE_WORDS_MS);
        words.tail_late = late;
    }
    return failure_describe(w, &words);
}

/* Append this node's failures in the order of deaths. Only the first gets its last lines: the others mostly report
 * that a peer is gone. */
static void append_own(struct failure_report *f, const struct failure_scene *now, cJSON *all)
{
    const struct failure_worker *w = now->workers;
    unsigned after = 0;
    const struct causes_machine machine = f->o.machine(f->o.arg);
    causes_read(&f->causes, &machine, w, now->n);
    for (int found = 0; found < OWN_MAX; found++) {
        const struct failure_worker *next = NULL;
        for (int i = 0; i < now->n; i++)
            if (failure_is(&w[i]) && w[i].order > after && (!next || w[i].order < next->order))
                next = &w[i];
        cJSON *o = next ? describe(f, now, next, found == 0) : NULL;
        if (!o)
            return;
        cJSON_AddItemToArray(all, o);
        after = next->order;
    }
}

/* --- which nodes have to do with it */

static bool ended_badly(const struct rdzv_news *end)
{
    return end->kind == RDZV_NEWS_END && end->exit_code != EXIT_OK && end->exit_code != EXIT_REQUEUE;
}

/* Did the round that this node was in fail, according to the rendezvous, with other nodes in it? */
static bool is_shared(const struct failure_scene *now)
{
    return now->round->round && now->round->group_world > 1 && ended_badly(now->end) &&
           now->end->round == now->round->round;
}

/* Did the round fail before this node learnt that it began? Then reports must still be exchanged. */
static bool has_missed_it(const struct failure_scene *now)
{
    const struct rdzv_news *end = now->end;
    return ended_badly(end) && end->round != now->round->round && end->leader_port > 0 &&
           (end->group_rank > 0 || (end->group_rank == 0 && end->group_world > 1));
}

/* Send this node's failures to group rank 0 of the round that failed. */
static void send_own(struct failure_report *f, const struct failure_scene *now, const cJSON *own, bool final)
{
    char fault[CAUSES_TEXT_MAX];
    const bool knows_end_only = now->end->round != now->round->round;
    struct endpoint to;
    f->o.find_leader(f->o.arg, knows_end_only ? now->end : now->round, &to);
    failure_share_send(f->share, now->end->round, &to, own, own_fault(f, now, fault), final);
}

static bool send_and_wait(struct failure_report *f, const struct failure_scene *now, const cJSON *own)
{
    send_own(f, now, own, true);
    return failure_share_wait_sent(f->share);
}

void failure_report_send_early(struct failure_report *f, const struct failure_scene *now)
{
    if (!is_shared(now) || now->unstarted || now->round->group_rank == 0 || now->live == 0 ||
        failure_first(now->workers, now->n) < 0)
        return;
    cJSON *own = cJSON_CreateArray();
    if (own) {
        append_own(f, now, own);
        send_own(f, now, own, false);
    }
    cJSON_Delete(own);
}

int failure_report_receive(void *arg, const char *node, const char *text, size_t n)
{
    return failure_share_receive(((struct failure_report *)arg)->share, node, text, n);
}

/* Group rank 0 missed the round: serve its store now, because the nodes that report are waiting for it. */
static void serve_missed(struct failure_report *f, const struct failure_scene *now)
{
    struct err e;
    failure_share_begin_round(f->share, now->end->group_world);
    if (f->o.serve(f->o.arg, now->end, &e) < 0)
        log_debug("agent", "cannot hear of the other nodes' failures: %s", e.text);
}

/* --- the report */

/* Have the files written; do not wait for the disk. */
static void write_files(struct failure_report *f, const struct failure_job *job, const cJSON *all, bool of_job)
{
    char hung[FAILURE_FILES_MAX], output[FAILURE_OUTPUT_MAX];
    if (!failure_files_write(&f->o, job, all, of_job, hung))
        return;
    wait_for_answers(f);
    if (!logmux_has_answers(f->o.mux))
        logmux_print(f->o.mux,
                     "the failure report is not written after %d ms: the disk of %s hangs, or %s stands still",
                     FAILURE_WORDS_MS, hung, f->o.output_text(f->o.arg, output));
}

static void publish(const struct failure_report *f, const struct failure_job *job, const cJSON *all)
{
    char *text = all->child ? failure_json_short(job, all, RDZV_FAILURE_MAX) : NULL;
    if (text)
        f->o.publish(f->o.arg, text);
    free(text);
}

/* Print one line, if this node has no failure to show; nothing if it has been printed already. */
static void print_line(const struct failure_report *f, const struct failure_scene *now, const cJSON *faults)
{
    const struct rdzv_cause *c = &now->end->cause;
    struct buf more = {0};
    if (now->exit_code == EXIT_UNKILLABLE || now->unstarted || *now->refused)
        return;
    const char *seen = failure_render_faults(faults, NULL, &more) == 0 && more.len ? more.data : "";
    if (c->text[0] && c->rank >= 0)
        logmux_print(f->o.mux, "the job failed: %s%s", c->text, seen);
    else if (c->text[0])
        logmux_print(f->o.mux, "the job failed: %s (exit code %d)%s", c->text, now->exit_code, seen);
    else
        logmux_print(f->o.mux, "the job ended with exit code %d%s", now->exit_code, seen);
    buf_free(&more);
}

static void print_all(const struct failure_report *f, const struct failure_scene *now, const struct failure_job *job,
                      const cJSON *all)
{
    struct buf text;
    buf_init(&text, 1u << 20);
    if (all->child && failure_render(job, all, &text) == 0)
        logmux_print_text(f->o.mux, text.data);
    else
        print_line(f, now, job->faults);
    buf_free(&text);
}

/* Nodes of which no report can come. Where another machine is the rendezvous, one at most is known: the node whose loss
 * failed the round. */
static int count_lost(const struct failure_report *f, const struct rdzv_news *round, const struct rdzv_news *end)
{
    const int reached = f->o.reached(f->o.arg), others = round->group_world - 1;
    const struct rdzv_cause *c = &end->cause;
    if (reached >= 0)
        return reached < others ? others - reached : 0;
    return c->rank < 0 && c->exit_code == EXIT_UNAVAILABLE && strncmp(c->text, "node '", 6) == 0;
}

static void report(struct failure_report *f, const struct failure_scene *now, cJSON *all, cJSON *faults)
{
    const struct rdzv_news *end = now->end;
    char fault[CAUSES_TEXT_MAX];
    const bool shared = is_shared(now), missed = has_missed_it(now);
    const bool of_round = now->round->round && (end->round == 0 || end->round == now->round->round);
    const struct rdzv_news *last = missed ? end : now->round;
    struct failure_job job = {.run_id = f->o.run_id,
                              .program = f->o.program,
                              .round = last->round,
                              .restarts = last->restart_count,
                              .max_restarts = f->o.max_restarts,
                              .restart_window = f->o.restart_window,
                              .exit_code = now->exit_code,
                              .cause = end->cause.text,
                              .culprit = end->kind == RDZV_NEWS_END ? end->cause.rank : -1,
                              .faults = faults};
    if (of_round && !now->unstarted) {
        wait_for_answers(f);
        append_own(f, now, all);
        failure_add_fault(faults, f->o.node, own_fault(f, now, fault));
    }
    if ((shared || missed) && last->group_rank > 0 && send_and_wait(f, now, all)) {
        print_line(f, now, faults);
        failure_sort(all, job.culprit);
        write_files(f, &job, all, false);
        return;
    }
    if (missed && last->group_rank == 0)
        serve_missed(f, now);
    if ((shared || missed) && last->group_rank == 0)
        job.unheard = failure_share_collect(f->share, count_lost(f, last, end), all, faults);
    failure_sort(all, job.culprit);
    print_all(f, now, &job, all);
    const bool of_job = (of_round || missed) && last->group_rank == 0;
    if (of_job)
        publish(f, &job, all);
    write_files(f, &job, all, of_job);
}

/* This node has left the round: tell group rank 0 that it has nothing to report, in case the round fails later. */
static void send_nothing(struct failure_report *f, const struct failure_scene *now, const cJSON *nothing)
{
    if (nothing && now->end->kind == RDZV_NEWS_END && now->end->round == now->round->round &&
        now->round->group_rank > 0)
        send_and_wait(f, now, nothing);
}

void failure_report_finish(struct failure_report *f, const struct failure_scene *now)
{
    cJSON *all = cJSON_CreateArray(), *faults = cJSON_CreateArray();
    if (now->unstarted && !is_shared(now) && !has_missed_it(now)) /* printed already, and no other node needs it */
        send_nothing(f, now, all);
    else if (all)
        report(f, now, all, faults);
    else
        print_line(f, now, faults);
    cJSON_Delete(faults);
    cJSON_Delete(all);
}

/* --- life */

int failure_report_open(struct failure_report **ret, const struct failure_report_options *o, struct err *e)
{
    struct failure_report *f = calloc(1, sizeof *f);
    if (!f)
        return err_errno(e, ENOMEM, "failure report");
    f->o = *o;
    if (!(f->late = calloc(1, sizeof *f->late))) {
        free(f);
        return err_errno(e, ENOMEM, "failure report");
    }
    causes_open(&f->causes);
    uv_timer_init(o->loop, f->late);
    f->late->data = f;
    const int rc = failure_share_open(&f->share, o->loop, o->run_id, o->node, o->hurry, e);
    *ret = f;
    return rc;
}

void failure_report_begin_round(struct failure_report *f, int nodes)
{
    failure_share_begin_round(f->share, nodes);
    causes_begin_round(&f->causes);
}

static void on_late_closed(uv_handle_t *h)
{
    free(h);
}

void failure_report_close(struct failure_report *f)
{
    if (!f)
        return;
    uv_close((uv_handle_t *)f->late, on_late_closed);
    failure_share_close(f->share);
    causes_close(&f->causes);
    free(f);
}
