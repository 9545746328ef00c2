/* The room rendezvousd/history: what is remembered of jobs for people who look, and shown by the daemon's status page.
 *
 *     jobs ──jobs_watch.h──► history.c: a record for each instance ──► history_write.c: JSON ──►
 *     daemon/http.c
 *                              │ curve.h: points, bounded                 daemon/metrics.c
 *                              │ node_figures.h: last reports of nodes
 *                              └──► history_store.c: a file for each in the state directory, and back
 *
 *   - a record begins with the first news of an instance, and follows it: state, rounds, restarts, curves;
 *   - once its job is over it is one of the finished, of which the newest max_jobs are kept: some 16 KiB each at most;
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
#define HISTORY_MARKS 32       /* restarts and changes of size that are kept of a job: the newest */

struct history_options {
    uv_loop_t *loop;
    double (*wall)(void);  /* seconds since 1970; NULL: the system's */
    size_t max_jobs;       /* finished ones */
    struct state_dir *dir; /* closed after it; NULL: in memory only. A folder "history" is made in it */
};

/* Reads what the state directory holds, which blocks on its disk. */
int history_open(struct history **ret, const struct history_options *o, struct err *e);
void history_close(struct history *h); /* NULL allowed; the loop must turn once more */

void history_watcher(struct history *h, struct jobs_watcher *ret); /* for jobs_watch(), before jobs_load() */
/* All jobs are loaded: records of jobs that are not among them end, as nothing else would end them. */
void history_settle(struct history *h);
/* This principal's run id is forgotten: a record that is still open ends, one that never had a round goes. */
void history_forget_run(struct history *h, const char *principal, const char *run);

/* --- for those who look */

struct history_reader {
    bool all;              /* sees everything of all jobs */
    bool queue;            /* sees that other principals' jobs are there: names, states, figures */
    const char *principal; /* sees everything of its own; NULL: of nobody */
};

/* May they see that this principal's jobs are there; and their failure reports and paths? */
bool history_shows(const struct history_reader *who, const char *principal);
bool history_shows_all_of(const struct history_reader *who, const char *principal);

/* Of the jobs that are not over, an array "figures" (reference/protocol.md, "Status"); then "history": the newest
 * number of a finished job, and how many there are. */
void history_add_figures(const struct history *h, const struct history_reader *who, struct json_write *w);
/* Finished jobs that came after number `after`, the oldest first, HISTORY_LIST_MAX at most. -ENOMEM. */
int history_list(const struct history *h, const struct history_reader *who, uint64_t after, struct buf *out);
/* Appends a JSON array of the newest HISTORY_ENDED_MAX finished jobs, the oldest first. run: of this run id alone;
 * NULL: of all. Returns how many; -ENOMEM. */
int history_ended(const struct history *h, const struct history_reader *who, const char *run, struct buf *out);
/* All of one job. -ENOENT: there is none, or they may not know of it. */
int history_job(const struct history *h, const struct history_reader *who, const char *instance, struct buf *out,
                struct err *e);

/* For metrics: a job that is not over. NAN: not known. */
struct history_figures {
    const char *run, *principal, *state; /* borrowed until the loop turns */
    double step, total_steps, loss, accuracy, eval_accuracy, images_per_s, step_s, eta_s, progress_age_s;
    int world_size, restarts;
};
/* The newest first. */
void history_each(const struct history *h, void (*visit)(void *arg, const struct history_figures *f), void *arg);
size_t history_finished(const struct history *h);

#endif
