/* The decision log of a job on disk, and a job from its log. A record is a decision (common/rdzv/leader/leader.h); a
 * rewrite is one that says everything. */
#include "common/base/err.h"
#include "common/base/log.h"
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

static void on_durable(void *arg)
{
    struct job *job = arg;
    struct jobs_party *p;
    while ((p = job->undurable)) {
        const struct leader_member *m = party_member_(p);
        if (m && !job_durable_(job, m->stamp))
            break;
        DL_DELETE2(job->undurable, p, disk_prev, disk_next);
        p->waits_disk = false;
        party_queue_(p);
    }
    jobs_tell_(job->jobs); /* the job may be gone afterwards */
}

/* Without its log the job lives on in memory. */
static void give_up(struct job *job)
{
    log_error(MODULE, "run=%s no memory for its log: it will not outlive this daemon", leader_run(job->leader));
    persist_log_remove(job->log);
    job->log = NULL;
    job->unlogged = true;
}

static bool begin_log(struct job *job)
{
    struct err e;
    if (job->log)
        return true;
    if (persist_log_create(job->jobs->o.persist, leader_instance(job->leader), &job->log, &e) < 0) {
        give_up(job);
        return false;
    }
    persist_log_watch(job->log, on_durable, job);
    return true;
}

static int whole_text(const struct job *job, struct buf *out)
{
    return leader_text(job->leader, job->jobs->o.now(), out, NULL);
}

void job_compact_(struct job *job)
{
    size_t appended, base;
    struct buf b = {.max = PERSIST_RECORD_MAX};
    if (!job->log)
        return;
    persist_sizes(job->log, &appended, &base);
    if (appended < KEEP_BYTES + 4 * base)
        return;
    if (whole_text(job, &b) == 0)
        persist_rewrite(job->log, b.data, b.len);
    buf_free(&b);
}

uint64_t job_log_(struct job *job)
{
    struct buf b = {.max = PERSIST_RECORD_MAX};
    const bool to_keep = job->jobs->o.persist && !job->unlogged && begin_log(job);
    uint64_t number = 0;
    if (leader_decide(job->leader, job->jobs->o.now(), false, &b, NULL) < 0) {
        if (to_keep)
            give_up(job);
    } else if (to_keep) {
        number = b.len ? persist_append(job->log, b.data, b.len) : persist_last(job->log);
    }
    buf_free(&b);
    return number;
}

void job_log_age_(struct job *job)
{
    struct buf b = {.max = PERSIST_RECORD_MAX};
    if (job->log && !job->unlogged && leader_age_line(job->leader, job->jobs->o.now(), &b) == 0)
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
    struct job *job;
};

static int load_begin(void *arg, struct persist_log *l, void **ret_log_arg, struct err *e)
{
    struct loading *ld = arg;
    ld->log = l;
    *ret_log_arg = ld;
    return job_create_(ld->jobs, "", "", &ld->job, e);
}

static int load_record(void *log_arg, const char *text, size_t n, struct err *e)
{
    struct loading *ld = log_arg;
    return leader_replay(ld->job->leader, text, n, ld->jobs->o.now(), e);
}

static void drop_job(struct loading *ld)
{
    void (*forgotten)(void *arg, const char *run) = ld->jobs->forgotten;
    ld->jobs->forgotten = NULL; /* nobody has known it */
    ld->job->log = NULL;        /* whose file stays */
    job_forget_(ld->job);
    ld->jobs->forgotten = forgotten;
    ld->job = NULL;
}

/* The job as it is now, after all records. */
static int restore(struct job *job, struct err *e)
{
    struct leader *l = job->leader;
    TRY(leader_restore(l, job->jobs->o.now(), e));
    job->over = leader_is_over(l);
    job->round = rdzv_round(leader_machine(l));
    job->restarts = (uint64_t)rdzv_restarts(leader_machine(l));
    while (leader_next_fresh(l)) /* nobody asks yet */
        ;
    return 0;
}

static int load_end(void *log_arg, struct err *e)
{
    struct loading *ld = log_arg;
    struct job *job = ld->job;
    struct buf b = {.max = PERSIST_RECORD_MAX};
    if (!leader_machine(job->leader)) { /* it died before its first record was whole */
        drop_job(ld);
        persist_log_remove(ld->log);
        ld->log = NULL;
        return 0;
    }
    int rc = restore(job, e);
    if (rc == 0)
        rc = leader_decide(job->leader, job->jobs->o.now(), true, &b, e);
    job->log = ld->log;
    ld->log = NULL;
    job->unlogged = rc < 0;
    if (rc == 0) {
        struct rdzv *machine = leader_machine(job->leader);
        persist_log_watch(job->log, on_durable, job);
        persist_rewrite(job->log, b.data, b.len);
        log_info(MODULE, "run=%s loaded: %s, round %llu, %d nodes", leader_run(job->leader),
                 rdzv_state_name(rdzv_state(machine)), (unsigned long long)rdzv_round(machine), rdzv_nodes(machine));
    }
    buf_free(&b);
    job_arm_(job);
    job_watch_(job);
    return rc;
}

static void load_drop(void *log_arg)
{
    struct loading *ld = log_arg;
    drop_job(ld);
    ld->log = NULL;
}

int jobs_load_text_(struct jobs *j, const char *p, size_t n, struct job **ret, struct err *e)
{
    struct loading ld = {.jobs = j};
    size_t good;
    TRY(job_create_(j, "", "", &ld.job, e));
    int rc = persist_parse(p, n, load_record, &ld, &good, e);
    if (rc == 0 && leader_machine(ld.job->leader))
        rc = restore(ld.job, e);
    else
        drop_job(&ld);
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
    int rc = persist_load(j->o.persist, &r, e);
    j->stats.damaged = persist_damaged(j->o.persist);
    if (rc < 0 && ld.log)
        persist_log_close(ld.log);
    return rc;
}
