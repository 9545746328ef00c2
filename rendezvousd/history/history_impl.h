/* The inside of the history, shared by history*.c. */
#ifndef CRUN_RENDEZVOUSD_HISTORY_IMPL_H
#define CRUN_RENDEZVOUSD_HISTORY_IMPL_H

#include "common/rdzv/leader/leader.h"
#include "rendezvousd/history/curve.h"
#include "rendezvousd/history/history.h"
#include "rendezvousd/history/node_figures.h"
#include "rendezvousd/jobs/job_metrics.h"

struct state_dir;
struct rdzv_home;

/* A place where a curve breaks: a restart, or another number of nodes. */
struct mark {
    float t_s;
    uint32_t step;       /* the last before it */
    uint64_t round;      /* the one that broke */
    int rank, exit_code; /* -1, 0: nobody failed */
    char why[120];
};

/* The newest report of the job's first worker; NAN: not known. */
struct job_figures {
    double step, total_steps, v[CURVE_N];
    struct job_metric metrics[JOB_METRICS_MAX]; /* that it names itself */
    int n_metrics;
};

/* A record: one job, that is, one instance of a run id. */
struct record {
    struct history *history;
    char instance[LEADER_INSTANCE_LEN + 1];
    char *run, *principal;
    char state[16];
    bool over;
    uint64_t number;           /* position among finished jobs, in order of their ends; 0: not over */
    double started_s, ended_s; /* wall clock; ended_s 0: it is not over */
    uint64_t round;
    int nodes, min_nodes, max_nodes, world_size, restarts, max_restarts, exit_code, rank;
    char cause[RDZV_TEXT_MAX + 1];
    struct job_figures now;
    double progress_s; /* wall clock when it last reported a new step; 0: not since the daemon began */
    struct curve curve;
    struct mark *marks; /* a ring of HISTORY_MARKS; NULL: none yet */
    uint32_t mark_count;
    char *failure, *logs;         /* JSON, checked; a path. NULL: none. Only for its principal */
    struct node_figures *reports; /* by node; while it is not over */
    struct rdzv_home *home;       /* its file, open while it is not over or not on disk; NULL: not open */
    bool dirty;                   /* differs from what is on disk */
    struct record *prev, *next;   /* in history->live, newest first, or in history->finished, oldest first */
    UT_hash_handle hh;            /* by instance */
};

struct history {
    struct history_options o;
    struct record *all; /* by instance */
    struct record *live, *finished;
    size_t n_finished;
    uint64_t last_number;
    struct state_dir *dir; /* NULL: in memory only */
    uv_timer_t *timer;     /* writes changed records; NULL if there is no dir */
    bool is_armed;
};

/* history.c */
double history_now_(const struct history *h);
struct record *record_new_(struct history *h, const char *instance, const char *run, const char *principal);
void record_free_(struct record *r); /* removes it from all lists; its file stays */
/* moves it from live to finished, and to disk; the oldest, even this one, may be dropped */
void record_finish_(struct record *r);
void record_free_nodes_(struct record *r);
void job_figures_clear_(struct job_figures *f);
double record_eta_s_(const struct record *r, double now_s); /* NAN: not known */

/* history_write.c */
/* Write the record as an object: all of it, for its principal and the disk, or without its private members. Live
 * figures if now_s > 0. */
void record_write_(const struct record *r, bool with_private, double now_s, struct json_write *w);
void record_write_summary_(const struct record *r, struct json_write *w); /* its members, into an object */

/* history_store.c */
int store_open_(struct history *h, struct err *e);
void store_close_(struct history *h);
void store_touch_(struct record *r);      /* write it some time */
void store_write_(struct record *r);      /* now */
void store_remove_(struct record *r);     /* its file */
void store_close_home_(struct record *r); /* the file stays */

#endif
