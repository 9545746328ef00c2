/* The inside of jobs, for jobs*.c: life and time, members, news, what parties ask, history, status, the log. */
#ifndef CRUN_RENDEZVOUSD_JOBS_IMPL_H
#define CRUN_RENDEZVOUSD_JOBS_IMPL_H

#include "common/base/buf.h"
#include "common/rdzv/machine/rdzv.h"
#include "rendezvousd/jobs/jobs.h"

#define HASH_NONFATAL_OOM 1
#include "common/base/seeded_hash.h"

struct job;
struct member;

struct jobs_party {
    struct jobs *jobs;
    struct jobs_party_options o;
    struct member *member; /* it stands for this one; NULL: for none */
    bool asks;             /* a NEXT waits for its answer */
    bool is_void;          /* a newer party stands for its node */
    int joins;             /* since joins_since, but those that a round awaited */
    uint64_t round;        /* the last that awaited one */
    int64_t joins_since;
};

/* Where a member's next date is. */
enum member_list {
    LIST_NONE,
    LIST_HEARD,  /* connected: silent at heard_ms + silence_ms */
    LIST_SILENT, /* the machine waits for it */
    LIST_ENDED,  /* forgotten by the machine, its END is kept until heard_ms + JOBS_LINGER_MS */
    LIST_COUNT,
};

/* A node as this host knows it. It outlives the machine's node when its END is not told yet. */
struct member {
    struct job *job;
    char node[RDZV_ID_MAX + 1];
    struct jobs_party *party; /* NULL: not connected */
    struct rdzv_news news;    /* the newest, if has_news */
    bool has_news;
    bool told;        /* it went out once; kept until it is acknowledged */
    bool known;       /* to the machine */
    bool loopback;    /* its address is one */
    bool to_tell;     /* in jobs->tell */
    bool waits_disk;  /* in job->undurable */
    uint64_t record;  /* must be on disk before the news is told */
    uint64_t acked;   /* newest seq that was acknowledged or is void */
    int64_t heard_ms; /* its last request, or its END */
    char *report;     /* what its trainer said last, a record; NULL: nothing */
    enum member_list list;
    struct member *prev, *next;           /* job->lists[list], oldest first */
    struct member *tell_prev, *tell_next; /* jobs->tell */
    struct member *disk_prev, *disk_next; /* job->undurable, oldest record first */
    UT_hash_handle hh;                    /* job->members */
};

struct happening {
    int64_t at_ms; /* since the job's start */
    uint64_t round;
    char text[160];
};

struct job_restart {
    int64_t at_ms;
    uint64_t round; /* the one that broke */
    struct rdzv_cause cause;
};

struct job {
    struct jobs *jobs;
    char run[JOBS_RUN_MAX + 1];
    char instance[JOBS_INSTANCE_LEN + 1];
    char *principal;
    struct rdzv_config config;
    struct rdzv *machine;
    struct member *members; /* by node */
    struct member *lists[LIST_COUNT];
    size_t known;                    /* members the machine knows */
    char outside[RDZV_ADDR_MAX + 1]; /* our address as members on other hosts have it, "": there are none */
    int64_t started_ms, over_ms;     /* over_ms 0: not over */
    bool over;
    size_t bytes;
    struct persist_log *log;  /* NULL: in memory only */
    struct member *undurable; /* they ask, and their news wait for the disk */
    bool unlogged;            /* no log is kept although there is a state directory */
    uint64_t restarts_logged;
    struct happening events[JOBS_EVENTS];
    uint64_t event_count;
    struct job_restart restarts[JOBS_RESTARTS];
    uint64_t restart_count;
    struct job *prev, *next; /* jobs->all, newest first */
};

struct jobs {
    struct jobs_options o; /* no zeroes: defaults are filled in */
    struct job *all;
    size_t count;
    struct member *tell; /* those whose news may go out */
    bool telling, loading;
    struct rdzv_effects fx;
    uv_timer_t *timer; /* NULL: no loop */
    int64_t armed;     /* the earliest date known */
    int64_t awake_ms;  /* when we ran again after a pause of our own */
    struct jobs_stats stats;
    void (*forgotten)(void *arg, const char *run);
    void *forgotten_arg;
};

/* jobs.c */
struct job *job_find_(const struct jobs *j, const char *run); /* the instance that is not over, else the newest; NULL */
int job_create_(struct jobs *j, const char *run, const char *principal, const struct rdzv_config *c, struct job **ret,
                struct err *e);
void job_forget_(struct job *job); /* with its log */
/* One step of the machine and all that follows but the telling. */
int job_step_(struct job *job, const struct rdzv_event *ev, struct err *e);
int job_silent_(struct member *m);         /* SILENT since it was last heard */
bool job_is_final_(const struct job *job); /* by its machine */
void job_arm_(struct job *job);
void job_heard_(struct job *job);           /* of a member: job_arm_(), later where it can be */
void job_forget_if_empty_(struct job *job); /* nobody is left, and there was no round */
void jobs_arm_(struct jobs *j, int64_t deadline);

/* jobs_member.c */
struct member *member_find_(const struct job *job, const char *node);
int member_add_(struct job *job, const char *node, struct member **ret, struct err *e);
void member_drop_(struct member *m);
void member_list_(struct member *m, enum member_list list); /* to its end */
void member_set_known_(struct member *m, bool known);
int member_heard_(struct member *m, struct err *e); /* RESUME, if it was silent */
/* p stands for m from now on; the party before it is void. ERR_REFUSED: p stands for another. */
int member_bind_(struct member *m, struct jobs_party *p, struct err *e);

/* jobs_tell.c */
void job_take_effects_(struct job *job, struct rdzv_effects *fx);
void jobs_queue_(struct member *m); /* look whether it can be told */
void jobs_tell_(struct jobs *j);

/* jobs_verbs.c: -EACCES; principal NULL may do everything */
int job_check_owner_(const struct job *job, const char *principal, struct err *e);

/* jobs_history.c */
struct job_before {
    enum rdzv_state state;
    uint64_t round;
    int restarts;
};
struct job_before job_before_(const struct job *job);
void job_note_(struct job *job, const struct job_before *before, const struct rdzv_event *ev);

/* jobs_log.c: the decision log of a job; nothing of it without a state directory. */
uint64_t job_log_(struct job *job,
                  const struct rdzv_effects *fx); /* number of the record that must be durable, 0: none */
void job_compact_(struct job *job);
void job_log_age_(struct job *job);                    /* before it is closed */
int job_whole_text_(struct job *job, struct buf *out); /* the one record of a rewrite; -ENOMEM, -E2BIG */
/* A job from the bytes of its log, in memory only. *ret: NULL if there is none in it; on failure it may be there in
 * part. */
int jobs_load_text_(struct jobs *j, const char *p, size_t n, struct job **ret, struct err *e);
bool job_durable_(const struct job *job, uint64_t record);

#endif
