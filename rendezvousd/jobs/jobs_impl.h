/* The inside of jobs, shared by jobs*.c: a shell around leaders (common/rdzv/leader/leader.h), one for each run id. */
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
    struct job *job; /* the job in which it represents `node`; NULL: none */
    char node[RDZV_ID_MAX + 1];
    bool asks;       /* a NEXT waits for its answer */
    int from;        /* its NEXT wants addresses from this group rank on; -1: all at once */
    bool is_void;    /* a newer party stands for its node */
    bool to_tell;    /* in jobs->tell */
    bool waits_disk; /* in job->undurable */
    bool in_term;    /* it has named the epoch of the elected leader */
    int joins;       /* JOINs since joins_since, except those that a round expected */
    uint64_t round;  /* last round that expected a JOIN */
    int64_t joins_since;
    int seat;               /* at a host of a list; -1: not said yet */
    uint64_t seated;        /* equal to jobs->seated[seat] while the node uses this party */
    uint64_t answers;       /* number of answers to its JOINs and NEXTs */
    struct seats_sent sent; /* the newest answer */
    int64_t answered_ms;    /* when its newest JOIN or NEXT was answered; 0: never */
    int64_t bound_ms;       /* its node asked us after this, and may have been acknowledged; 0: it was not */
    struct jobs_party *tell_prev, *tell_next; /* jobs->tell */
    struct jobs_party *disk_prev, *disk_next; /* job->undurable, oldest record first */
    UT_hash_handle hh;                        /* job->parties, by node */
};

#define ENDED_MAX 1024

/* A job as last reported to the watcher, to be compared bytewise. */
struct job_seen {
    uint64_t round;
    int state, nodes, restarts;
    char instance[LEADER_INSTANCE_LEN + 4];
};
static_assert(sizeof(struct job_seen) == 8 + 3 * sizeof(int) + LEADER_INSTANCE_LEN + 4, "no gaps");

struct job {
    struct jobs *jobs;
    struct rdzv_reign reign;    /* its home: NULL before the first decision */
    struct rdzv_home memory;    /* its home if there is no state directory, or no log in it */
    struct jobs_party *parties; /* by node */
    struct jobs_party *here;    /* the party in this process; NULL: none */
    int departed;               /* number of nodes of the newest round that left in good order */
    uint64_t round;             /* the newest round in our log of events */
    bool over;
    bool broken;                  /* a bug of ours was found: nothing is decided any more */
    struct jobs_party *undurable; /* parties with an open NEXT whose news wait for the disk */
    uint64_t restarts;            /* counted */
    struct job_seen seen;
    int world_size;             /* of the newest round */
    struct deadline tick;       /* in jobs->ticks; no later than the leader's deadline */
    struct jobs_asking *asking; /* a question under way; NULL: none */
    struct owner *owner;        /* NULL: the job is being loaded, and has no name yet */
    struct job *prev, *next;    /* jobs->all, newest first */
    UT_hash_handle hh;          /* jobs->named, by key */
    size_t key_len;
    char key[LEADER_NAME_MAX + JOBS_RUN_MAX + 2]; /* principal, 0, run id; in a hosting crun only the run id */
};

/* A principal that has jobs. */
struct owner {
    size_t jobs;
    UT_hash_handle hh;
    char name[];
};

/* The term of an elected leader; home NULL: this leader was not elected. */
struct term {
    struct rdzv_home *home;
    char run[JOBS_RUN_MAX + 1], node[RDZV_ID_MAX + 1], epoch[RDZV_EPOCH_MAX + 1], identity[RDZV_IDENTITY_MAX + 1];
    int64_t until, full_until, hold_until;
    int64_t valid_ms, lately_ms;
    int64_t away_until;  /* it may go on until then, without the home; no later than `until`: it may not */
    int64_t loose_until; /* a node that was lost may claim: no renewal counts for away_until that was sent before */
    struct rdzv_home nowhere; /* after it */
    void (*higher)(void *arg, const char *epoch);
    void *arg;
};

struct jobs {
    struct jobs_options o; /* no zeroes: defaults are filled in */
    struct term term;
    struct jobs_taken taken; /* of a daemon that shares its state, in its term */
    struct seats *seats;     /* of a host of a list; NULL: this is not one */
    char listed_run[JOBS_RUN_MAX + 1];
    uint64_t seatings, *seated; /* by seat: which party has it */
    uint64_t numbered;          /* the highest number of news of the jobs that this host of a list has given up */
    struct job *all, *named;
    struct owner *owners;
    struct expiry ticks;
    size_t count;
    struct jobs_party *tell; /* parties whose news may be sent */
    bool telling;
    uint64_t askings;                       /* number of the newest question */
    uv_timer_t *timer;                      /* NULL: no loop */
    int64_t armed;                          /* the earliest date known */
    int64_t born_ms;                        /* when this process began: it does not remember rounds that ran before */
    char (*ended)[LEADER_INSTANCE_LEN + 1]; /* ENDED_MAX instances that are over; a ring */
    size_t ended_count;
    struct jobs_stats stats;
    struct jobs_watcher watcher;
    void (*forgotten)(void *arg, const char *principal, const char *run);
    void *forgotten_arg;
};

/* jobs.c */
struct job *job_find_(const struct jobs *j, const char *principal, const char *run); /* NULL */
/* Find a job. principal NULL: whichever principal has a job of that name. -ENOENT; -EINVAL: several have. */
int job_look_up_(const struct jobs *j, const char *principal, const char *run, struct job **ret, struct err *e);
int job_check_limits_(const struct jobs *j, const char *run, const char *principal, struct err *e);
int job_create_(struct jobs *j, const char *run, const char *principal, struct job **ret, struct err *e);
/* enter it under its leader's principal and run id, so that it is found */
int job_name_(struct job *job, struct err *e);
void job_forget_(struct job *job); /* with its log */
/* Handle one event and its consequences, except sending news. */
int job_step_(struct job *job, const struct leader_event *ev, struct err *e);
void job_after_(struct job *job); /* a step: log, queue, arm */
void job_arm_(struct job *job);
bool jobs_has_ended_(const struct jobs *j, const char *instance);
void job_heard_(struct job *job);           /* after a sign of life of a member: job_arm_(), or later if possible */
void job_forget_if_empty_(struct job *job); /* if no node is left, and there was no round */
void jobs_notice_pause_(struct jobs *j);

/* jobs_party.c */
struct jobs_party *party_find_(const struct job *job, const char *node);
struct leader_member *party_member_(const struct jobs_party *p); /* NULL: it represents none, or that one was dropped */
/* From now on p represents that node; the party before it becomes void. ERR_REFUSED: p represents another node. */
int party_bind_(struct jobs_party *p, struct job *job, const char *node, struct err *e);
void party_unbind_(struct jobs_party *p);
void party_queue_(struct jobs_party *p); /* queue it if it has an open NEXT, and there is news for it */
void jobs_tell_(struct jobs *j);

/* jobs_term.c */
void party_bound_(struct jobs_party *p, int64_t when); /* its node asked after `when`, and is acknowledged */
/* The party ends, or stands for its node no more. dead: this was seen of the node. */
void party_loose_(struct jobs_party *p, bool dead);
void jobs_no_term_(struct jobs *j);     /* nobody is led here, or no longer */
bool jobs_leads_(const struct jobs *j); /* true: it needs no claim, or its claim is confirmed */
int party_check_term_(const struct jobs_party *p, struct err *e);
void job_note_past_(struct job *job, const struct rdzv_event *join); /* a JOIN that may name a round */

/* jobs_seats.c; these functions do nothing except at a host of a list */
int jobs_open_seats_(struct jobs *j, struct err *e);
void jobs_close_seats_(struct jobs *j);
void jobs_look_at_seats_(struct jobs *j); /* before a request is handled: jobs may be dropped */
bool jobs_hear_enough_(const struct jobs *j);
void job_hold_first_(struct job *job);
/* Before jobs_join(): give the node the seat that it names. Refused if another node that is heard has the seat. */
int party_join_seat_(struct jobs_party *p, const char *run, const struct rdzv_event *join, struct err *e);
int party_resume_seat_(struct jobs_party *p, const struct job *job, const char *node, struct err *e);
void party_leave_seat_(struct jobs_party *p, enum jobs_end how);
void party_answered_(struct jobs_party *p); /* its JOIN or NEXT was answered */

/* jobs_ask.c */
void party_ask_(struct jobs_party *p);  /* if it has an open NEXT: send it the job's question, unless it has got that */
void job_drop_asking_(struct job *job); /* the job goes */

/* jobs_lease.c */
void job_confirmed_(struct job *job, struct leader_member *m, int64_t sent_ms);
/* Its connection has ended: record it if the node left the round in good order. */
void job_note_departed_(struct job *job, const struct leader_member *m);

void job_watch_(struct job *job); /* jobs_watch.c: reports what has changed */

static inline bool jobs_keeps_(const struct jobs *j) /* its jobs outlive this process */
{
    return j->o.dir || j->o.shared;
}

/* jobs_log.c: the decisions of a job in its home */
void job_decide_(struct job *job);
void job_close_home_(struct job *job, bool forget);
bool job_is_durable_(const struct job *job); /* its log is on disk, or on its way there: it would survive this daemon */
void job_live_in_(struct job *job, struct rdzv_home *home); /* from now on */
int64_t job_clock_(const struct rdzv_reign *r);

#endif
