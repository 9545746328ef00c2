/* The inside of jobs, for jobs*.c: a shell around leaders (common/rdzv/leader/leader.h), one for each run id. Life and
 * time, parties, what they ask, status, the log. */
#ifndef CRUN_RENDEZVOUSD_JOBS_IMPL_H
#define CRUN_RENDEZVOUSD_JOBS_IMPL_H

#include "common/rdzv/leader/rdzv_reign.h"
#include "common/rdzv/leader/seats.h"
#include "rendezvousd/jobs/jobs.h"
#include "rendezvousd/jobs/jobs_watch.h"
#include "rendezvousd/store/expiry.h"
#include <assert.h>

struct job;

struct jobs_party {
    struct jobs *jobs;
    struct jobs_party_options o;
    struct job *job; /* it stands for `node` of this one; NULL: for none */
    char node[RDZV_ID_MAX + 1];
    bool asks;       /* a NEXT waits for its answer */
    int from;        /* that wants addresses from this group rank on; -1: all at once */
    bool is_void;    /* a newer party stands for its node */
    bool to_tell;    /* in jobs->tell */
    bool waits_disk; /* in job->undurable */
    bool in_term;    /* it has named the epoch of the leader that was elected */
    int joins;       /* since joins_since, but those that a round awaited */
    uint64_t round;  /* the last that awaited one */
    int64_t joins_since;
    int seat;                                 /* at a host of a list; -1: it has not said */
    uint64_t seated;                          /* in jobs->seated, as long as its node comes by this one */
    uint64_t answers;                         /* to its JOINs and NEXTs */
    struct seats_sent sent;                   /* the newest of them */
    int64_t answered_ms;                      /* its newest JOIN or NEXT was answered then; 0: none was */
    struct jobs_party *tell_prev, *tell_next; /* jobs->tell */
    struct jobs_party *disk_prev, *disk_next; /* job->undurable, oldest record first */
    UT_hash_handle hh;                        /* job->parties, by node */
};

#define ENDED_MAX 1024

/* A job as last reported to the watcher; compared as bytes. */
struct job_seen {
    uint64_t round;
    int state, nodes, restarts;
    char instance[LEADER_INSTANCE_LEN + 4];
};
static_assert(sizeof(struct job_seen) == 8 + 3 * sizeof(int) + LEADER_INSTANCE_LEN + 4, "no gaps");

struct job {
    struct jobs *jobs;
    struct rdzv_reign reign;    /* its home: NULL before the first decision */
    struct rdzv_home memory;    /* its home, where there is no state directory or no log of it */
    struct jobs_party *parties; /* by node */
    struct jobs_party *here;    /* of these the one in this process; NULL: none */
    int departed;               /* nodes of the newest round that have left in good order */
    uint64_t round;             /* the newest that is in our log of events */
    bool over;
    bool broken;                  /* by a fault of ours: nothing is decided any more */
    struct jobs_party *undurable; /* they ask, and their news wait for the disk */
    uint64_t restarts;            /* counted */
    struct job_seen seen;
    int world_size;             /* of the newest round */
    struct deadline tick;       /* in jobs->ticks; no later than that of its leader */
    struct jobs_asking *asking; /* a question under way; NULL: none */
    struct owner *owner;        /* NULL: it is being loaded, and has no name yet */
    struct job *prev, *next;    /* jobs->all, newest first */
    UT_hash_handle hh;          /* jobs->named, by key */
    size_t key_len;
    char key[LEADER_NAME_MAX + JOBS_RUN_MAX + 2]; /* principal, 0, run id; in a hosting crun the run id alone */
};

/* A principal that has jobs. */
struct owner {
    size_t jobs;
    UT_hash_handle hh;
    char name[];
};

/* That of an elected leader; home NULL: whoever leads here was not elected. */
struct term {
    struct rdzv_home *home;
    char run[JOBS_RUN_MAX + 1], node[RDZV_ID_MAX + 1], epoch[RDZV_EPOCH_MAX + 1], identity[RDZV_IDENTITY_MAX + 1];
    int64_t until, full_until, hold_until;
    struct rdzv_home nowhere; /* after it */
    void (*higher)(void *arg, const char *epoch);
    void *arg;
};

struct jobs {
    struct jobs_options o; /* no zeroes: defaults are filled in */
    struct term term;
    struct seats *seats; /* of a host of a list; NULL: it is none */
    char listed_run[JOBS_RUN_MAX + 1];
    uint64_t seatings, *seated; /* by seat: which party has it */
    uint64_t numbered;          /* the highest number of news of the jobs that this host of a list has given up */
    struct job *all, *named;
    struct owner *owners;
    struct expiry ticks;
    size_t count;
    struct jobs_party *tell; /* those whose news may go out */
    bool telling;
    uint64_t askings;                       /* so far: the newest one's number */
    uv_timer_t *timer;                      /* NULL: no loop */
    int64_t armed;                          /* the earliest date known */
    int64_t born_ms;                        /* what ran before it has no memory of */
    char (*ended)[LEADER_INSTANCE_LEN + 1]; /* ENDED_MAX instances that are over; a ring */
    size_t ended_count;
    struct jobs_stats stats;
    struct jobs_watcher watcher;
    void (*forgotten)(void *arg, const char *principal, const char *run);
    void *forgotten_arg;
};

/* jobs.c */
struct job *job_find_(const struct jobs *j, const char *principal, const char *run); /* NULL */
/* principal NULL: of whichever has a job of that name. -ENOENT; -EINVAL: several have one. */
int job_look_up_(const struct jobs *j, const char *principal, const char *run, struct job **ret, struct err *e);
int job_check_limits_(const struct jobs *j, const char *run, const char *principal, struct err *e);
int job_create_(struct jobs *j, const char *run, const char *principal, struct job **ret, struct err *e);
int job_name_(struct job *job, struct err *e); /* so that it is found: by the principal and run id of its leader */
void job_forget_(struct job *job);             /* with its log */
/* One event, and all that follows but the telling. */
int job_step_(struct job *job, const struct leader_event *ev, struct err *e);
void job_after_(struct job *job); /* a step: log, queue, arm */
void job_arm_(struct job *job);
bool jobs_has_ended_(const struct jobs *j, const char *instance);
void job_heard_(struct job *job);           /* of a member: job_arm_(), later where it can be */
void job_forget_if_empty_(struct job *job); /* nobody is left, and there was no round */
void jobs_notice_pause_(struct jobs *j);

/* jobs_party.c */
struct jobs_party *party_find_(const struct job *job, const char *node);
struct leader_member *party_member_(const struct jobs_party *p); /* NULL: it stands for none, or that is dropped */
/* p stands for that node from now on; the party before it is void. ERR_REFUSED: p stands for another. */
int party_bind_(struct jobs_party *p, struct job *job, const char *node, struct err *e);
void party_unbind_(struct jobs_party *p);
void party_queue_(struct jobs_party *p); /* queue it if it asks and there is news for it */
void jobs_tell_(struct jobs *j);

/* jobs_term.c */
void jobs_no_term_(struct jobs *j);     /* nobody is led here, or no longer */
bool jobs_leads_(const struct jobs *j); /* it was not elected, or its claim is confirmed */
int party_check_term_(const struct jobs_party *p, struct err *e);
void job_note_past_(struct job *job, const struct rdzv_event *join); /* a JOIN that may name a round */

/* jobs_seats.c; all of it does nothing but at a host of a list */
int jobs_open_seats_(struct jobs *j, struct err *e);
void jobs_close_seats_(struct jobs *j);
void jobs_look_at_seats_(struct jobs *j); /* before anything is asked: jobs may go */
bool jobs_hear_enough_(const struct jobs *j);
void job_hold_first_(struct job *job);
/* As jobs_join(): the seat that its node names is its own. */
int party_join_seat_(struct jobs_party *p, const char *run, const struct rdzv_event *join, struct err *e);
int party_resume_seat_(struct jobs_party *p, const struct job *job, const char *node, struct err *e);
void party_leave_seat_(struct jobs_party *p, enum jobs_end how);
void party_answered_(struct jobs_party *p); /* JOIN or NEXT, in whatever way */

/* jobs_ask.c */
void party_ask_(struct jobs_party *p);  /* it has a NEXT open: the question of its job, unless it had it */
void job_drop_asking_(struct job *job); /* the job goes */

/* jobs_lease.c */
void job_confirmed_(struct job *job, struct leader_member *m, int64_t sent_ms);
/* Its connection has ended: has it left the round in good order? */
void job_note_departed_(struct job *job, const struct leader_member *m);

void job_watch_(struct job *job); /* jobs_watch.c: reports what has changed */

/* jobs_log.c: the decisions of a job in its home */
void job_decide_(struct job *job);
void job_close_home_(struct job *job, bool forget);
bool job_is_durable_(const struct job *job); /* its log is on disk, or on its way: it outlives this daemon */
void job_live_in_(struct job *job, struct rdzv_home *home); /* from now on */
int64_t job_clock_(const struct rdzv_reign *r);

#endif
