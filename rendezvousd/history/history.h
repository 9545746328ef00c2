/* The room rendezvousd/history: remembers jobs for people, and for the daemon's status page.
 *
 *     jobs ──jobs_watch.h──► history.c: a record for each instance ──► history_write.c: JSON ──►
 *     daemon/http.c
 *                              │ curve.h: points, bounded                 daemon/metrics.c
 *                              │ node_figures.h: last reports of nodes
 *                              └──► history_store.c: a file for each in the state directory, and back
 *
 *   - a record begins with the first news of an instance, and follows it: state, rounds, restarts, curves;
 *   - once its job is over, the record is finished; the newest max_jobs finished records are kept, 16 KiB each at most;
 *   - with a state directory a record is on disk when its job ends, and while it runs every HISTORY_WRITE_MS: a daemon
 *     that is killed loses that much of a curve. Its disk holds nobody up (rendezvousd/state/state_dir.h).
 * Who may see what is struct history_reader. Loop thread only. */
#ifndef CRUN_RENDEZVOUSD_HISTORY_H
#define CRUN_RENDEZVOUSD_HISTORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

struct buf;
struct err;
struct history;
struct jobs_watcher;
struct json_write;
struct state_dir;

#define HISTORY_WRITE_MS 30000
#define HISTORY_LIST_MAX 500   /* finished jobs in one answer */
#define HISTORY_ENDED_MAX 50   /* likewise, for a terminal */
#define HISTORY_RANKS_MAX 2048 /* ranks in one answer */
#define HISTORY_MARKS 32       /* restarts and changes of size kept of a job, the newest */

struct history_options {
    uv_loop_t *loop;
    double (*wall)(void); /* seconds since 1970; NULL: the system's */
    size_t max_jobs;      /* finished ones */
    /* must be closed after the history; NULL: in memory only. A folder "history" is made in it */
    struct state_dir *dir;
};

/* Open, and read what the state directory has, which blocks on its disk. */
int history_open(struct history **ret, const struct history_options *o, struct err *e);
void history_close(struct history *h); /* NULL allowed; the loop must turn once more */

void history_watcher(struct history *h, struct jobs_watcher *ret); /* for jobs_watch(), before jobs_load() */
/* All jobs have been loaded: end the records of jobs that are not among them, because nothing else would. */
void history_settle(struct history *h);
/* This principal's run id has been forgotten: a record that is still open ends; one that never had a round is
 * removed. */
void history_forget_run(struct history *h, const char *principal, const char *run);

/* --- for those who look */

struct history_reader {
    bool all;              /* sees everything of all jobs */
    bool queue;            /* may see that other principals' jobs exist: names, states, figures */
    const char *principal; /* may see everything of its own jobs; NULL: no principal */
};

/* May the reader see that this principal's jobs exist; and may it see their failure reports and paths? */
bool history_shows(const struct history_reader *who, const char *principal);
bool history_shows_all_of(const struct history_reader *who, const char *principal);

/* Add the array "figures" of jobs that are not over (reference/protocol.md, "Status"); then "history": number of the
 * newest finished job, and how many there are. */
void history_add_figures(const struct history *h, const struct history_reader *who, struct json_write *w);
/* Append finished jobs with numbers above `after`, the oldest first, HISTORY_LIST_MAX at most. -ENOMEM. */
int history_list(const struct history *h, const struct history_reader *who, uint64_t after, struct buf *out);
/* Append a JSON array of the newest HISTORY_ENDED_MAX finished jobs, the oldest first. run: only this run id; NULL:
 * all. Returns the number; -ENOMEM. */
int history_ended(const struct history *h, const struct history_reader *who, const char *run, struct buf *out);
/* Append all of one job. -ENOENT: there is none, or the reader may not know of it. */
int history_job(const struct history *h, const struct history_reader *who, const char *instance, struct buf *out,
                struct err *e);

/* The figures of a job that is not over, for metrics. NAN: not known. */
struct history_figures {
    const char *run, *principal, *state; /* borrowed until the loop turns */
    double step, total_steps, loss, accuracy, eval_accuracy, images_per_s, step_s, eta_s, progress_age_s;
    int world_size, restarts;
    const struct job_metric *metrics; /* that it names itself; borrowed likewise */
    int n_metrics;
};
/* The newest first. */
void history_each(const struct history *h, void (*visit)(void *arg, const struct history_figures *f), void *arg);
size_t history_finished(const struct history *h);

#endif
