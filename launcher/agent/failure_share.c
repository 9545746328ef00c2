#include "launcher/agent/failure_share.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <uthash.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/base/log.h"
#include "common/job/exitcode.h"
#include "common/job/failure_record.h"
#include "launcher/agent/member.h"
#include "launcher/agent/run.h"
#include "launcher/base/program.h"
#include "launcher/base/virtual_rank.h"
#include "launcher/config/config.h"
#include "launcher/hang/hang_watch.h"
#include "launcher/output/logmux.h"
#include "launcher/rendezvous/rdzv_conn.h"
#include "launcher/rendezvous/rdzv_dial.h"
#include "launcher/report/core_path.h"
#include "launcher/report/failure.h"

/* Workers of one node that are told of. */
#define OWN_MAX 32

/* --- the failures of this node */

static void find_message(struct run *r, const struct failure_worker *w, struct failure_record *record,
                         struct failure_words *words)
{
    const char *path = round_error_path(r, w->rank);
    if (w->hung[0]) {
        words->message = hang_watch_text(r->hang);
        words->message_from = "seen by crun";
    } else if (path && failure_record_read(path, record, NULL) == 0) {
        words->message = record->message;
        words->message_from = r->logs.root[0] ? path : "error.json"; /* else its folder is gone in a moment */
    } else if ((words->message = group_error_text(r->group, w->local_rank))) {
        words->message_from = "told through libcrun";
    }
}

static void find_core(const struct run *r, const struct failure_worker *w, double time, char *out, size_t cap)
{
    char folder[2048];
    out[0] = '\0';
    if (!w->ending.core || !getcwd(folder, sizeof folder))
        return;
    const struct core_facts facts = {.pid = w->pid,
                                     .signo = w->ending.value,
                                     .program = r->program->path,
                                     .host = r->host,
                                     .folder = folder,
                                     .time = (long long)time};
    core_path_find(&facts, out, cap);
}

/* The worker's share of the list of devices, where this node has one. */
static const char *find_gpu(int local, struct virtual_rank *device)
{
    if (!getenv("CUDA_VISIBLE_DEVICES") && !getenv("HIP_VISIBLE_DEVICES"))
        return NULL;
    if (virtual_rank_device(local, device, NULL) < 0)
        return NULL;
    const char *value = strchr(device->cuda, '=');
    return value && value[1] ? value + 1 : NULL;
}

static double wall_time(int64_t ended_ns)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + (double)(now.tv_nsec - (clock_ns() - ended_ns)) / 1e9;
}

static cJSON *describe(struct run *r, const struct failure_worker *w, bool with_tail)
{
    struct failure_record record;
    struct virtual_rank device;
    char core[4096];
    struct failure_words words = {.host = r->host, .node = r->node, .time = wall_time(w->ended_ns)};
    find_message(r, w, &record, &words);
    find_core(r, w, words.time, core, sizeof core);
    words.core = core[0] ? core : NULL;
    words.gpu = find_gpu(w->local_rank, &device);
    words.tail = with_tail ? logmux_tail(r->mux, w->local_rank) : NULL;
    return failure_describe(w, &words);
}

/* In the order of their deaths. Only the first has its last words: the others mostly say that a peer is gone. */
static void add_own(struct run *r, cJSON *all)
{
    const struct failure_worker *w = group_workers(r->group);
    unsigned after = 0;
    for (int found = 0; found < OWN_MAX; found++) {
        const struct failure_worker *next = NULL;
        for (int i = 0; i < r->agent.slots; i++)
            if (failure_is(&w[i]) && w[i].order > after && (!next || w[i].order < next->order))
                next = &w[i];
        cJSON *o = next ? describe(r, next, found == 0) : NULL;
        if (!o)
            return;
        cJSON_AddItemToArray(all, o);
        after = next->order;
    }
}

/* --- telling group rank 0 */

static void hang_up(struct failure_share *s)
{
    dial_cancel(s->dial);
    rdzv_conn_close(s->conn);
    s->dial = NULL;
    s->conn = NULL;
    s->ready = false;
    s->unanswered = 0;
}

static void send_pending(struct run *r)
{
    struct failure_share *s = &r->share;
    char round[24];
    if (!s->ready || !s->pending)
        return;
    snprintf(round, sizeof round, "%llu", (unsigned long long)r->end.round);
    if (rdzv_conn_send(s->conn, 5, (const char *[]){"RDZV.FAILURE", r->config->run_id, r->node, round, s->pending},
                       NULL) == 0)
        s->unanswered++;
    else
        s->refused = true;
    free(s->pending);
    s->pending = NULL;
}

static void on_ready(void *arg)
{
    struct run *r = arg;
    r->share.ready = true;
    send_pending(r);
}

static void on_reply(void *arg, const redisReply *reply)
{
    struct failure_share *s = &((struct run *)arg)->share;
    s->unanswered--;
    if (reply->type != REDIS_REPLY_STATUS) {
        s->refused = true;
        log_debug("agent", "group rank 0 does not take our failures: %s", reply->str ? reply->str : "");
    }
}

static void on_lost(void *arg, enum rdzv_lost how, const char *why)
{
    struct failure_share *s = &((struct run *)arg)->share;
    (void)how;
    log_debug("agent", "cannot tell group rank 0 of our failures: %s", why ? why : "");
    s->refused = true;
    hang_up(s);
}

static void on_dialled(void *arg, int fd, const char *text)
{
    struct run *r = arg;
    struct failure_share *s = &r->share;
    const struct rdzv_conn_options o = {.ready = on_ready, .reply = on_reply, .lost = on_lost, .arg = r};
    s->dial = NULL;
    if (fd < 0 || rdzv_conn_open(&s->conn, &r->loop, fd, &o, NULL) < 0) {
        log_debug("agent", "cannot tell group rank 0 of our failures: %s", text ? text : "");
        s->refused = true;
    }
}

static void tell(struct run *r, const cJSON *own, bool final)
{
    struct failure_share *s = &r->share;
    struct endpoint to;
    free(s->pending);
    s->refused = false;
    s->pending = failure_tell(own, final);
    if (!s->pending)
        s->refused = true;
    else if (s->conn)
        send_pending(r);
    else if (!s->dial) {
        if (r->end.round != r->round.round) /* of which this node knows the end only */
            member_note_leader(r, &r->end);
        snprintf(to.host, sizeof to.host, "%.255s", r->master_addr);
        snprintf(to.port, sizeof to.port, "%d", r->master_port);
        s->refused = dial_start(&s->dial, &r->loop, &to, FAILURE_SHARE_MS, on_dialled, r, NULL) < 0;
    }
}

/* The rendezvous has said of the round that this node was in that it failed, and others were in it. */
static bool is_shared(const struct run *r)
{
    return r->round.round && r->round.group_world > 1 && r->end.kind == RDZV_NEWS_END &&
           r->end.round == r->round.round && r->end.exit_code != EXIT_OK && r->end.exit_code != EXIT_REQUEUE;
}

/* It failed before this node had heard that it began: there is something to hear, or somebody waits to be told, all the
 * same. */
static bool has_missed_it(const struct run *r)
{
    return r->end.kind == RDZV_NEWS_END && r->end.round != r->round.round &&
           (r->end.group_rank > 0 || (r->end.group_rank == 0 && r->end.group_world > 1)) && r->end.leader_port > 0 &&
           r->end.exit_code != EXIT_OK && r->end.exit_code != EXIT_REQUEUE;
}

void failure_share_tell_early(struct run *r)
{
    if (!is_shared(r) || r->unspawned || r->round.group_rank == 0 || r->agent.live == 0 ||
        failure_first(group_workers(r->group), r->agent.slots) < 0)
        return;
    cJSON *own = cJSON_CreateArray();
    if (own) {
        add_own(r, own);
        tell(r, own, false);
    }
    cJSON_Delete(own);
}

/* --- hearing it */

struct failure_heard {
    UT_hash_handle hh;
    char *text;
    size_t n;
    bool final;
    char node[RDZV_ID_MAX + 1];
};

static void forget(struct failure_share *s)
{
    struct failure_heard *h, *next;
    HASH_ITER (hh, s->heard, h, next) {
        HASH_DEL(s->heard, h);
        free(h->text);
        free(h);
    }
}

static struct failure_heard *heard_of(struct run *r, const char *node)
{
    struct failure_heard *h;
    HASH_FIND_STR(r->share.heard, node, h);
    if (h)
        return h;
    if ((int)HASH_COUNT(r->share.heard) >= r->share.others || strlen(node) >= sizeof h->node ||
        !(h = calloc(1, sizeof *h)))
        return NULL;
    strcpy(h->node, node);
    HASH_ADD_STR(r->share.heard, node, h);
    return h;
}

int failure_share_on_told(void *arg, const char *node, const char *text, size_t n)
{
    struct run *r = arg;
    cJSON *list = cJSON_CreateArray();
    bool final;
    const bool understood = list && failure_merge(list, text, n, &final);
    cJSON_Delete(list);
    struct failure_heard *h = understood ? heard_of(r, node) : NULL;
    char *copy = h ? malloc(n) : NULL;
    if (!copy)
        return ERR_REFUSED;
    memcpy(copy, text, n);
    free(h->text);
    h->text = copy;
    h->n = n;
    h->final = final;
    return 0;
}

static int count_final(const struct failure_share *s)
{
    int n = 0;
    for (const struct failure_heard *h = s->heard; h; h = h->hh.next)
        n += h->final;
    return n;
}

static void add_heard(const struct failure_share *s, cJSON *all)
{
    bool final;
    for (const struct failure_heard *h = s->heard; h; h = h->hh.next)
        if (h->text)
            failure_merge(all, h->text, h->n, &final);
}

/* --- the report */

static void on_late(uv_timer_t *t)
{
    ((struct run *)t->data)->share.is_late = true;
}

static void start_wait(struct run *r)
{
    r->share.is_late = false;
    uv_update_time(&r->loop);
    uv_timer_start(&r->share.late, on_late, FAILURE_SHARE_MS, 0);
}

static bool told(struct run *r, const cJSON *own)
{
    struct failure_share *s = &r->share;
    tell(r, own, true);
    start_wait(r);
    while (!s->refused && (s->pending || s->unanswered > 0) && !s->is_late && !r->hurry)
        uv_run(&r->loop, UV_RUN_ONCE);
    uv_timer_stop(&s->late);
    return !s->refused && !s->pending && s->unanswered == 0;
}

/* Returns how many nodes told nothing. */
static int hear(struct run *r, cJSON *all)
{
    struct failure_share *s = &r->share;
    start_wait(r);
    while (count_final(s) < s->others && !s->is_late && !r->hurry)
        uv_run(&r->loop, UV_RUN_ONCE);
    uv_timer_stop(&s->late);
    add_heard(s, all);
    return s->others - (int)HASH_COUNT(s->heard);
}

/* Group rank 0 has missed it: those who tell wait at its listener. */
static void serve_missed(struct run *r)
{
    struct err e;
    failure_share_begin_round(r, r->end.group_world);
    if (member_serve(r, &r->end, &e) < 0)
        log_debug("agent", "cannot hear of the other nodes' failures: %s", e.text);
}

static int write_text(const char *path, const char *text, struct err *e)
{
    char tmp[LOG_PATH_MAX + 32];
    if ((size_t)snprintf(tmp, sizeof tmp, "%s.%d.tmp", path, (int)getpid()) >= sizeof tmp)
        return err_set(e, -ENAMETOOLONG, "failure report '%.60s...': the path is too long", path);
    FILE *f = fopen(tmp, "we");
    if (!f)
        return err_errno(e, errno, "write failure report '%s'", path);
    const bool bad = fprintf(f, "%s\n", text) < 0;
    if (fclose(f) != 0 || bad || rename(tmp, path) != 0) {
        const int why = errno;
        unlink(tmp);
        return err_errno(e, why, "write failure report '%s'", path);
    }
    return 0;
}

static void write_twin(struct run *r, const struct failure_job *job, const cJSON *all)
{
    char path[LOG_PATH_MAX];
    struct err e;
    const bool logs = r->logs.root[0];
    if (!logs && !r->config->failure_file)
        return;
    char *text = failure_json(job, all);
    snprintf(path, sizeof path, "%s/failure.json", r->logs.root);
    if (text && logs && write_text(path, text, &e) < 0)
        logmux_say(r->mux, "%s", e.text);
    if (text && r->config->failure_file && write_text(r->config->failure_file, text, &e) < 0)
        logmux_say(r->mux, "%s", e.text);
    free(text);
}

/* Unless it is said already. */
static void say_failure(struct run *r)
{
    if (r->exit_code != EXIT_UNKILLABLE && !r->unspawned)
        member_say_failure(r, r->exit_code);
}

static void show(struct run *r, const struct failure_job *job, const cJSON *all)
{
    struct buf text;
    buf_init(&text, 1u << 20);
    if (all->child && failure_render(job, all, &text) == 0)
        logmux_say_text(r->mux, text.data);
    else
        say_failure(r);
    buf_free(&text);
}

static void report(struct run *r, cJSON *all)
{
    const bool shared = is_shared(r), missed = has_missed_it(r),
               of_round = r->round.round && (r->end.round == 0 || r->end.round == r->round.round);
    const struct rdzv_news *last = missed ? &r->end : &r->round;
    struct failure_job job = {.run_id = r->config->run_id,
                              .program = r->program->name,
                              .round = last->round,
                              .restarts = last->restart_count,
                              .max_restarts = (int)r->config->max_restarts,
                              .restart_window = r->config->restart_window,
                              .exit_code = r->exit_code,
                              .cause = r->end.cause.text,
                              .culprit = r->end.kind == RDZV_NEWS_END ? r->end.cause.rank : -1};
    if (of_round && !r->unspawned)
        add_own(r, all);
    if ((shared || missed) && last->group_rank > 0 && told(r, all)) {
        say_failure(r);
        return;
    }
    if (missed && last->group_rank == 0)
        serve_missed(r);
    if ((shared || missed) && last->group_rank == 0)
        job.unheard = hear(r, all);
    failure_sort(all, job.culprit);
    show(r, &job, all);
    if ((of_round || missed) && last->group_rank == 0)
        write_twin(r, &job, all);
}

/* This node has left: if the round fails yet, it has nothing to tell. */
static void take_leave(struct run *r, const cJSON *nothing)
{
    if (nothing && r->end.kind == RDZV_NEWS_END && r->end.round == r->round.round && r->round.group_rank > 0)
        told(r, nothing);
}

void failure_share_report(struct run *r)
{
    cJSON *all = cJSON_CreateArray();
    if (r->unspawned && !is_shared(r) && !has_missed_it(r)) /* that is said, and concerns nobody else */
        take_leave(r, all);
    else if (all)
        report(r, all);
    else
        say_failure(r);
    cJSON_Delete(all);
}

/* --- life */

void failure_share_open(struct run *r)
{
    uv_timer_init(&r->loop, &r->share.late);
    r->share.late.data = r;
}

void failure_share_begin_round(struct run *r, int nodes)
{
    struct failure_share *s = &r->share;
    s->others = nodes - 1;
    forget(s);
    hang_up(s);
    free(s->pending);
    s->pending = NULL;
}

void failure_share_close(struct run *r)
{
    failure_share_begin_round(r, 1);
    uv_close((uv_handle_t *)&r->share.late, NULL);
}
