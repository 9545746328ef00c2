/* The decision log of a job, and a job from its log.
 *
 * Each step appends one record: first what the machine has changed (rdzv_delta), then lines of this host, which begin
 * with '@':
 *   @job run= principal= instance= ...settings   the first of each file
 *   @age ms=                                     how old the job was
 *   @news node= ...news                          what a member must be told
 *   @restart at= round= code= rank= text=        for status pages
 * A rewrite is one record with all of it. What was acknowledged, said by trainers or heard is not logged: members say
 * again how far they are, and all are silent when a log is loaded. No clock outlives a host, so the start is kept as an
 * age: of the last record, and of the daemon's end where that is an orderly one. */
#include "common/base/err.h"
#include "common/base/log.h"
#include "common/net/addr.h"
#include "common/rdzv/wire/rdzv_wire.h"
#include "rendezvousd/jobs/jobs_impl.h"
#include "rendezvousd/jobs/persist.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#define MODULE "jobs"
#define KEEP_BYTES (1u << 20) /* a file grows by this and four times its last whole text before it is rewritten */

/* --- writing */

static int begin_line(struct buf *out, const char *word)
{
    if (out->len && out->data[out->len - 1] != '\n')
        TRY(buf_addstr(out, "\n"));
    return buf_addstr(out, word);
}

static int job_line(const struct job *job, struct buf *out)
{
    TRY(begin_line(out, "@job"));
    TRY(rdzv_field_text(out, "run", job->run));
    TRY(rdzv_field_text(out, "principal", job->principal));
    TRY(rdzv_field_text(out, "instance", job->instance));
    return rdzv_config_encode(&job->config, out);
}

static int age_line(const struct job *job, struct buf *out)
{
    TRY(begin_line(out, "@age"));
    return rdzv_field_int(out, "ms", (long long)(job->jobs->o.now() - job->started_ms));
}

static int news_line(const char *node, const struct rdzv_news *news, struct buf *out)
{
    TRY(begin_line(out, "@news"));
    TRY(rdzv_field_text(out, "host_node", node));
    return rdzv_news_encode(news, out);
}

static int restart_line(const struct job_restart *r, struct buf *out)
{
    TRY(begin_line(out, "@restart"));
    TRY(rdzv_field_int(out, "at", r->at_ms));
    TRY(rdzv_field_int(out, "round", (long long)r->round));
    TRY(rdzv_field_int(out, "code", r->cause.exit_code));
    TRY(rdzv_field_int(out, "rank", r->cause.rank));
    return rdzv_field_text(out, "text", r->cause.text);
}

static int restart_lines(struct job *job, uint64_t from, struct buf *out)
{
    if (job->restart_count > JOBS_RESTARTS && from < job->restart_count - JOBS_RESTARTS)
        from = job->restart_count - JOBS_RESTARTS;
    for (; from < job->restart_count; from++)
        TRY(restart_line(&job->restarts[from % JOBS_RESTARTS], out));
    return 0;
}

static int step_text(struct job *job, const struct rdzv_effects *fx, bool first, struct buf *out)
{
    if (first)
        TRY(job_line(job, out));
    TRY(age_line(job, out));
    TRY(begin_line(out, ""));
    TRY(rdzv_delta(job->machine, job->jobs->o.now(), out, NULL));
    for (size_t i = 0; i < fx->n; i++)
        TRY(news_line(fx->v[i].node, &fx->v[i].news, out));
    return restart_lines(job, job->restarts_logged, out);
}

int job_whole_text_(struct job *job, struct buf *out)
{
    TRY(job_line(job, out));
    TRY(age_line(job, out));
    TRY(begin_line(out, ""));
    TRY(rdzv_snapshot(job->machine, job->jobs->o.now(), out, NULL));
    for (const struct member *m = job->members; m; m = m->hh.next)
        if (m->has_news)
            TRY(news_line(m->node, &m->news, out));
    return restart_lines(job, 0, out);
}

static void on_durable(void *arg)
{
    struct job *job = arg;
    struct member *m;
    while ((m = job->undurable) && job_durable_(job, m->record)) {
        DL_DELETE2(job->undurable, m, disk_prev, disk_next);
        m->waits_disk = false;
        jobs_queue_(m);
    }
    jobs_tell_(job->jobs); /* the job may be gone afterwards */
}

/* Without its log the job lives on in memory. */
static void give_up(struct job *job)
{
    log_error(MODULE, "run=%s no memory for its log: it will not outlive this daemon", job->run);
    persist_log_remove(job->log);
    job->log = NULL;
    job->unlogged = true;
}

static bool begin_log(struct job *job)
{
    struct err e;
    if (job->log)
        return true;
    if (persist_log_create(job->jobs->o.persist, job->instance, &job->log, &e) < 0) {
        give_up(job);
        return false;
    }
    persist_log_watch(job->log, on_durable, job);
    return true;
}

/* After a step's effects are taken, so that the members' news are those of the machine. */
void job_compact_(struct job *job)
{
    size_t appended, base;
    struct buf b = {.max = PERSIST_RECORD_MAX};
    if (!job->log)
        return;
    persist_sizes(job->log, &appended, &base);
    if (appended < KEEP_BYTES + 4 * base)
        return;
    if (job_whole_text_(job, &b) == 0)
        persist_rewrite(job->log, b.data, b.len);
    buf_free(&b);
}

uint64_t job_log_(struct job *job, const struct rdzv_effects *fx)
{
    struct buf b = {.max = PERSIST_RECORD_MAX};
    if (!job->jobs->o.persist || job->unlogged)
        return 0;
    const bool first = !job->log;
    if (!begin_log(job))
        return 0;
    if (step_text(job, fx, first, &b) < 0) {
        buf_free(&b);
        give_up(job);
        return 0;
    }
    job->restarts_logged = job->restart_count;
    uint64_t number = b.len ? persist_append(job->log, b.data, b.len) : persist_last(job->log);
    buf_free(&b);
    return number;
}

void job_log_age_(struct job *job)
{
    struct buf b = {.max = PERSIST_RECORD_MAX};
    if (job->log && !job->unlogged && age_line(job, &b) == 0)
        persist_append(job->log, b.data, b.len);
    buf_free(&b);
}

bool job_durable_(const struct job *job, uint64_t record)
{
    return !job->log || persist_durable(job->log, record);
}

/* --- loading */

struct loading {
    struct jobs *jobs;
    struct persist_log *log;
    struct job *job; /* NULL until its first line was read */
};

static int load_begin(void *arg, struct persist_log *l, void **ret_log_arg, struct err *e)
{
    struct loading *ld = arg;
    (void)e;
    ld->log = l;
    ld->job = NULL;
    *ret_log_arg = ld;
    return 0;
}

static int text_field(const char *p, size_t n, const char *key, char *ret, size_t cap, struct err *e)
{
    if (rdzv_field_find(p, n, key, ret, cap) == 1)
        return 0;
    return err_set(e, ERR_CORRUPT, "a line has no good field '%s'", key);
}

static int take_job(struct loading *ld, const char *p, size_t n, struct err *e)
{
    char run[JOBS_RUN_MAX + 1], principal[1024], instance[JOBS_INSTANCE_LEN + 1];
    struct rdzv_config c;
    if (ld->job)
        return 0;
    rdzv_config_defaults(&c);
    TRY(text_field(p, n, "run", run, sizeof run, e));
    TRY(text_field(p, n, "principal", principal, sizeof principal, e));
    TRY(text_field(p, n, "instance", instance, sizeof instance, e));
    TRY(rdzv_config_decode(p, n, &c, e));
    TRY(job_create_(ld->jobs, run, principal, &c, &ld->job, e));
    memcpy(ld->job->instance, instance, sizeof instance);
    ld->job->log = ld->log;
    ld->log = NULL;
    return 0;
}

static int member_of(struct job *job, const char *node, struct member **ret, struct err *e)
{
    *ret = member_find_(job, node);
    return *ret ? 0 : member_add_(job, node, ret, e);
}

static int take_news(struct job *job, const char *p, size_t n, struct err *e)
{
    char node[RDZV_ID_MAX + 1];
    struct rdzv_news news;
    struct member *m;
    TRY(text_field(p, n, "host_node", node, sizeof node, e));
    TRY(rdzv_news_decode(p, n, &news, e));
    if (!node[0])
        return err_set(e, ERR_CORRUPT, "news of no node");
    TRY(member_of(job, node, &m, e));
    m->news = news;
    m->has_news = true;
    return 0;
}

static int number_field(const char *p, size_t n, const char *key, long long *ret, struct err *e)
{
    char text[32], *end;
    TRY(text_field(p, n, key, text, sizeof text, e));
    errno = 0;
    *ret = strtoll(text, &end, 10);
    if (errno || !text[0] || *end)
        return err_set(e, ERR_CORRUPT, "%s=%s: expected a number", key, text);
    return 0;
}

static int take_age(struct job *job, const char *p, size_t n, struct err *e)
{
    long long ms;
    TRY(number_field(p, n, "ms", &ms, e));
    if (ms >= 0)
        job->started_ms = job->jobs->o.now() - ms;
    return 0;
}

static int take_restart(struct job *job, const char *p, size_t n, struct err *e)
{
    long long at, round, code, rank;
    struct job_restart *r = &job->restarts[job->restart_count % JOBS_RESTARTS];
    TRY(number_field(p, n, "at", &at, e));
    TRY(number_field(p, n, "round", &round, e));
    TRY(number_field(p, n, "code", &code, e));
    TRY(number_field(p, n, "rank", &rank, e));
    TRY(text_field(p, n, "text", r->cause.text, sizeof r->cause.text, e));
    r->at_ms = at;
    r->round = (uint64_t)round;
    r->cause.exit_code = (int)code;
    r->cause.rank = (int)rank;
    job->restart_count++;
    if (job->started_ms > job->jobs->o.now() - at)
        job->started_ms = job->jobs->o.now() - at; /* so old it is at least */
    return 0;
}

/* A line of this host: "@word field field". */
static int take_line(struct loading *ld, const char *p, size_t n, struct err *e)
{
    static const struct {
        const char *word;
        int (*take)(struct job *job, const char *p, size_t n, struct err *e);
    } words[] = {{"@age ", take_age}, {"@news ", take_news}, {"@restart ", take_restart}};
    if (n > 5 && memcmp(p, "@job ", 5) == 0)
        return take_job(ld, p + 5, n - 5, e);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        size_t len = strlen(words[i].word);
        if (n > len && memcmp(p, words[i].word, len) == 0)
            return ld->job ? words[i].take(ld->job, p + len, n - len, e)
                           : err_set(e, ERR_CORRUPT, "its first line is not '@job'");
    }
    return err_set(e, ERR_CORRUPT, "a line begins with '%.*s', which no version writes", n < 16 ? (int)n : 16, p);
}

static int replay(struct loading *ld, const char *p, size_t n, struct err *e)
{
    if (n == 0)
        return 0;
    if (!ld->job)
        return err_set(e, ERR_CORRUPT, "its first line is not '@job'");
    return rdzv_replay(ld->job->machine, p, n, ld->jobs->o.now(), e);
}

/* The machine's lines go to it in one piece, before this host's lines that follow them. */
static int load_record(void *log_arg, const char *text, size_t n, struct err *e)
{
    struct loading *ld = log_arg;
    const char *end = text + n, *machine = NULL;
    for (const char *at = text; at < end;) {
        const char *nl = memchr(at, '\n', (size_t)(end - at)), *next = nl ? nl + 1 : end;
        if (*at != '@') {
            machine = machine ? machine : at;
        } else {
            if (machine)
                TRY(replay(ld, machine, (size_t)(at - machine), e));
            machine = NULL;
            TRY(take_line(ld, at, (size_t)((nl ? nl : end) - at), e));
        }
        at = next;
    }
    return machine ? replay(ld, machine, (size_t)(end - machine), e) : 0;
}

static int see_node(void *arg, const struct rdzv_member *n)
{
    struct member *m;
    TRY(member_of(arg, n->node, &m, NULL));
    m->known = true;
    m->job->known++;
    m->loopback = addr_host_is_loopback(n->addr);
    return 0;
}

/* Nobody has been heard since the log was written. */
static void all_silent(struct job *job)
{
    struct member *m, *next;
    HASH_ITER (hh, job->members, m, next) {
        if (m->known && !job->over) {
            struct rdzv_event ev = {.kind = RDZV_SILENT};
            memcpy(ev.node, m->node, sizeof ev.node);
            member_list_(m, LIST_SILENT);
            job_step_(job, &ev, NULL);
        } else if (!m->known && m->has_news && m->news.kind == RDZV_NEWS_END) {
            m->heard_ms = job->jobs->o.now();
            member_list_(m, LIST_ENDED);
        } else if (!m->known) {
            member_drop_(m);
        }
    }
}

/* The job as it is now, after all records. */
static int restore(struct job *job, struct err *e)
{
    job->unlogged = true; /* until the whole of it is written anew */
    TRY(rdzv_members(job->machine, see_node, job) < 0 ? err_set(e, -ENOMEM, "no memory for its members") : 0);
    job->over = job_is_final_(job);
    job->over_ms = job->jobs->o.now();
    all_silent(job);
    job->restarts_logged = job->restart_count;
    return 0;
}

static int load_end(void *log_arg, struct err *e)
{
    struct loading *ld = log_arg;
    struct job *job = ld->job;
    struct buf b = {.max = PERSIST_RECORD_MAX};
    if (!job) { /* it died before its first record was whole */
        persist_log_remove(ld->log);
        ld->log = NULL;
        return 0;
    }
    struct persist_log *log = job->log;
    job->log = NULL;
    int rc = restore(job, e);
    if (rc == 0 && job_whole_text_(job, &b) < 0)
        rc = err_set(e, -ENOMEM, "no memory for its text");
    job->log = log;
    job->unlogged = rc < 0;
    if (rc == 0) {
        persist_log_watch(log, on_durable, job);
        persist_rewrite(log, b.data, b.len);
        log_info(MODULE, "run=%s loaded: %s, round %llu, %d nodes", job->run, rdzv_state_name(rdzv_state(job->machine)),
                 (unsigned long long)rdzv_round(job->machine), rdzv_nodes(job->machine));
    }
    buf_free(&b);
    job_arm_(job);
    return rc;
}

static void load_drop(void *log_arg)
{
    struct loading *ld = log_arg;
    if (ld->job) {
        ld->job->log = NULL; /* whose file stays */
        job_forget_(ld->job);
    }
    ld->job = NULL;
    ld->log = NULL;
}

int jobs_load_text_(struct jobs *j, const char *p, size_t n, struct job **ret, struct err *e)
{
    struct loading ld = {.jobs = j};
    size_t good;
    j->loading = true;
    int rc = persist_parse(p, n, load_record, &ld, &good, e);
    j->loading = false;
    if (rc == 0 && ld.job)
        rc = restore(ld.job, e);
    *ret = ld.job;
    return rc;
}

int jobs_load(struct jobs *j, struct err *e)
{
    struct loading ld = {.jobs = j};
    const struct persist_reader r = {
        .begin = load_begin, .record = load_record, .end = load_end, .drop = load_drop, .arg = &ld};
    if (!j->o.persist)
        return 0;
    j->loading = true;
    int rc = persist_load(j->o.persist, &r, e);
    j->loading = false;
    j->stats.damaged = persist_damaged(j->o.persist);
    if (rc < 0 && ld.log)
        persist_log_close(ld.log);
    return rc;
}
