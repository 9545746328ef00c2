/* Jobs by principal and run id: each has a leader (common/rdzv/leader/leader.h), parties that represent its members,
 * and a log. Two principals may use the same run id: neither notices the other's job.
 *
 * The life of a job:
 *   - the first JOIN of a run id makes it: an instance (a random id), the settings of that JOIN, the principal it
 *     belongs to;
 *   - members are parties: a connection (command_rdzv_party.c) or a crun in this process
 *     (launcher/rendezvous/rdzv_client_local.c). A party represents one node of one job from its JOIN, or its NEXT, on;
 *     news for that node are kept until a NEXT with their seq acknowledges them;
 *   - it is over when the machine is; for LEADER_LINGER_MS more its members still get their END, then it is forgotten.
 *     A JOIN of another node makes a new instance under the same run id at once, whose first round waits for the
 *     workers of the one before.
 * What goes wrong, and what is done:
 *   - a party ends with proof (JOBS_GONE: every process of the node has closed its socket): GONE. Without proof, or
 *     with no request for silence_ms: SILENT;
 *   - a node comes back on a new party: RESUME; its old party becomes void: all its requests are refused;
 *   - no node is left before the first round: the job is forgotten;
 *   - no member is heard: a node that the job does not know must ask again until they are back, or known to be dead;
 *   - with a state directory (rendezvousd/state/state_dir.h) no news is sent before the decision behind it is on disk;
 *     heartbeats never wait.
 *
 * No file, no socket; time comes from jobs_options.now. One thread. Callbacks are called from inside any call below:
 * they may call any jobs_ function; news that this causes come later. */
#ifndef CRUN_RENDEZVOUSD_JOBS_H
#define CRUN_RENDEZVOUSD_JOBS_H

#include "common/rdzv/leader/leader.h"
#include "common/rdzv/leader/presence.h"
#include <uv.h>

struct buf;
struct err;
struct jobs;
struct jobs_party;
struct state_dir;
struct state_shared;

#define JOBS_RUN_MAX 255     /* bytes of a run id */
#define JOBS_REPORT_MAX 1023 /* bytes of a report */
#define JOBS_PAGE 500        /* members per page of addresses: less than 1 MiB as a field of a record */

struct jobs_options {
    int64_t (*now)(void);     /* monotonic, ms; NULL: clock_ms */
    int64_t (*wall_ms)(void); /* as of leader_options; NULL: clock_wall_ms */
    uv_loop_t *loop;          /* NULL: the caller calls jobs_tick() no later than jobs_deadline() */
    uint64_t epoch;           /* epoch of this daemon: 1, or counted in its state directory */
    /* in a crun that hosts its own job: "", "none" and "default" are ordinary run ids, and any admitted client may
     * join: principals are not compared */
    bool embedded;
    size_t max_jobs;               /* 0: 1000 */
    size_t max_jobs_per_principal; /* 0: 100 */
    size_t max_nodes;              /* of one job; 0: 20000 */
    size_t max_job_bytes;          /* of one job in memory; 0: 256 MiB */
    int max_joins;         /* limit per party within 10 s, not counting a member's first after each round; 0: 100 */
    struct state_dir *dir; /* borrowed; NULL: jobs live in memory only */
    /* borrowed, instead of dir: jobs live in a state that several daemons share. Nobody is acknowledged before
     * jobs_take_over() and jobs_lead_until() */
    struct state_shared *shared;
    /* This is a host of a list: it has only the job listed_run, whose seats follow from these settings; both are
     * borrowed for the call. NULL: it is not. */
    const struct rdzv_config *listed;
    const char *listed_run;
    /* this node may be elected leader of the one job of a shared home: acknowledge nobody before jobs_lead() */
    bool elected;
};

int jobs_create(struct jobs **ret, const struct jobs_options *o, struct err *e);
/* Load the state directory: every member is silent, resumes with JOIN or NEXT, and is given up after the usual time
 * of a silent node. Call before the first party. ERR_CORRUPT and others name the file: serve nothing then. */
int jobs_load(struct jobs *j, struct err *e);
/* The state that several daemons share is this one's now: load its jobs. ERR_CORRUPT, -ENOMEM: serve nothing then. */
struct jobs_taken {
    uint64_t epoch;
    const char *identity, *text; /* of the home; n bytes of the log of all jobs */
    size_t n;
    int64_t grace_ms; /* added to each member's silence and kill, see leader_restore() */
    int64_t valid_ms; /* of a claim: where the home may have lost something, nothing is decided for so long besides */
};
int jobs_take_over(struct jobs *j, const struct jobs_taken *t, struct err *e);
/* Another daemon leads next: acknowledge nobody, answer each NEXT that waits, and write the present durations. */
void jobs_stand_down(struct jobs *j);
bool jobs_is_embedded(const struct jobs *j); /* of a hosting crun */
/* The job of an elected leader (common/rdzv/client/election.h), over the home that it has claimed. Nobody is
 * acknowledged before jobs_lead_until() sets a time; parties must name the epoch first (jobs_term()). */
struct jobs_lead {
    struct rdzv_home *home;                    /* only load and append are called; borrowed until jobs_destroy() */
    const char *run, *node, *epoch, *identity; /* copied */
    int64_t grace_ms;                          /* added to each member's silence and kill, see leader_restore() */
    int64_t valid_ms, lately_ms;               /* D; election_lately_ms() */
    int64_t full_until; /* if the home had no round and a JOIN names one: decide nothing before this time */
    /* A party named an epoch that is not below ours: nobody is acknowledged from now on. The callback only queues
     * this. */
    void (*higher)(void *arg, const char *epoch);
    void *arg;
};
struct jobs_led {
    bool is_empty; /* the home held no job */
    bool lost;     /* decisions may be lost: jobs_hold() is due */
};
/* For jobs with the option `elected`, which acknowledge nobody before this call. ERR_CORRUPT, ERR_MISMATCH: the
 * content of the home cannot be read. */
int jobs_lead(struct jobs *j, const struct jobs_lead *lead, struct jobs_led *ret, struct err *e);
void jobs_lead_until(struct jobs *j, int64_t until_ms);
/* After jobs_lead_until(): the claim that says so was sent at sent_ms, and has this away_ms (rdzv_claim.h). Until
 * sent_ms + away_ms this leader goes on while each node that it has acknowledged has asked it after an answer that was
 * sent less than valid_ms ago, or was seen to die. A node that was lost otherwise counts against all claims that are
 * sent within lately_ms. */
void jobs_lead_away(struct jobs *j, int64_t sent_ms, int64_t away_ms);
void jobs_hold(struct jobs *j, int64_t until_ms); /* decide nothing before */
/* The term is over: write the present durations to the home, if it still accepts them, and nothing afterwards. */
void jobs_yield(struct jobs *j);
bool jobs_all_know(const struct jobs *j); /* there is a job, it is over, and every node of it has been told */
int jobs_heard(const struct jobs *j);     /* number of nodes that are heard, of all jobs; INT_MAX: all jobs are over */

/* All parties must have been closed; jobs may still be running. NULL allowed. With a loop, memory is freed when the
 * loop has turned. */
void jobs_destroy(struct jobs *j);

int64_t jobs_deadline(const struct jobs *j); /* INT64_MAX: none */
void jobs_tick(struct jobs *j);

/* --- parties */

/* How a party ended. */
enum jobs_end {
    JOBS_GONE,   /* all processes of the node are dead, or it left in good order */
    JOBS_SILENT, /* nothing is proved */
};

struct jobs_party_options {
    const char *principal; /* borrowed for the party's life */
    const char *addr;      /* peer's address, used if JOIN names none; NULL: in this process; "": unknown */
    const char *local;     /* address of our end of its connection */
    /* The answer to jobs_next(): news. On group rank 0, before the workers of a ROUND start, with the addresses of
     * all members (comma separated, else NULL), or a page of them. more: group rank at which the next page begins;
     * asking for it brings the same news again; 0: there is none. news NULL: another party represents the node now
     * or, at a host of a list, the job has become unknown here (jobs_party_is_void() tells which). Borrowed for the
     * call. */
    void (*told)(void *arg, const struct rdzv_news *news, const char *member_addrs, int more);
    /* Another node has answered, so jobs_lease() may have changed. Only for parties in this process; NULL: no lease. */
    void (*confirmed)(void *arg);
    /* A question to this node (jobs_ask()), a record. For a party behind a connection it is the answer to
     * jobs_next(); for one in this process jobs_next() stays open. */
    void (*asked)(void *arg, const char *record, size_t n);
    /* Answer jobs_next() now, with or without news, so that the node shows that it is there, or goes where another
     * daemon leads. NULL: it is answered at its timeout. */
    void (*again)(void *arg);
    void *arg;
};

int jobs_party_open(struct jobs_party **ret, struct jobs *j, const struct jobs_party_options *o, struct err *e);
void jobs_party_close(struct jobs_party *p, enum jobs_end how); /* NULL allowed; no callback after it */

struct jobs_joined {
    char instance[LEADER_INSTANCE_LEN + 1];
    uint64_t epoch, seq;  /* seq: news up to this number were delivered, or are void; NEXT asks for newer ones */
    uint64_t first_round; /* lower bound of this instance's round numbers */
    bool few;             /* at a host of a list: too few seats are heard, so the answer acknowledges nothing */
    const char *beside;   /* in a hosting crun: run id of the oldest other job, else NULL. Borrowed, as jobs_owner() */
};

/* Errors of all verbs, e->code as returned:
 *   ERR_FENCED    of an older round, or the party is void;
 *   ERR_REFUSED   by the machine, or the party stands for another node;
 *   ERR_MISMATCH  JOIN: settings differ from the job's, both are named;
 *   -ENOENT       this principal has no such job;
 *   -EDQUOT       a limit;
 *   -EAGAIN       JOIN: ask again, nothing is heard of the job's nodes;
 *   -ESTALE       who was elected does not lead now, or not under the epoch that was named;
 *   -EREMOTE      this daemon stands by for another one;
 *   -EINVAL, -ENOMEM. */

/* ev: a JOIN event; addr "" means the party's own address. */
int jobs_join(struct jobs_party *p, const char *run, const struct rdzv_event *ev, const struct rdzv_config *settings,
              struct jobs_joined *ret, struct err *e);
/* Acknowledge news up to `seq`, and ask for the next: told() gets it, perhaps before this returns. from: group rank
 * at which the page of addresses begins; -1: all at once. One question at a time: a second one replaces the first. */
int jobs_next(struct jobs_party *p, const char *run, const char *node, uint64_t seq, int from, struct err *e);
void jobs_next_cancel(struct jobs_party *p);
/* After jobs_next(): the node should get an answer at once, nil if there are no news. A job that waits for all nodes of
 * its list begins when each has got an answer since the newest came. */
bool jobs_next_hurries(const struct jobs_party *p);
/* May anybody be acknowledged now? Checked for each answer, after its request was read. 0; -ESTALE: the elected node
 * does not lead now; -EREMOTE: nor does this daemon; -EBUSY: this host of a list hears too few seats. */
int jobs_may_answer(struct jobs *j, struct err *e);
/* At a host of a list, before JOIN or NEXT: how many answers to JOIN and NEXT the node has got from this party. */
void jobs_got(struct jobs_party *p, uint64_t answers);
bool jobs_party_is_void(const struct jobs_party *p); /* another party stands for its node */
/* What a node without a host wants to know about this one. -ENOENT: it hosts no such job for a list. */
struct jobs_seats {
    int heard;      /* seats, that of `node` not counted */
    uint64_t round; /* the newest that this host knows; 0: none */
    bool over;      /* the job is over, which every node that comes is told */
};
int jobs_seats(struct jobs *j, const char *run, const char *node, struct jobs_seats *ret, struct err *e);
/* The greeting to an elected leader: the epoch that is dialled, the highest epoch that the node has seen, and the
 * round of its workers (0: none). ERR_FENCED: this job has no such round. */
int jobs_term(struct jobs_party *p, const char *run, const char *epoch, const char *seen, uint64_t round,
              struct err *e);
/* The instance of the job that it leads, "": none yet. A node with workers of another instance must kill them. */
const char *jobs_term_instance(const struct jobs_party *p);
/* Until when the workers of this party, which is in this process, may run: as long as MIN nodes, itself counted,
 * have each got an answer of ours that was sent within silence_ms, or have left the round in good order. A node's
 * NEXT shows that it got the answer before. INT64_MAX: no limit. */
int64_t jobs_lease(const struct jobs_party *p);
/* In a hosting crun: whom `node`, which hosts, reaches among the other members of the newest round of its job. */
struct jobs_reach {
    int reached;      /* they were told of the end, or were heard of within silence_ms */
    char lost[160];   /* hosts of those others that are not, and are not known to be dead: "a,b" or "a,b,..." */
    int64_t until_ms; /* the job is over, and the last of those who may not know must have ended its workers by then;
                       * 0: all know; INT64_MAX: it is not over */
};
void jobs_reach(const struct jobs *j, const char *run, const char *node, struct jobs_reach *ret);
/* FAIL, DONE or LEAVE of ev->node; the party need not represent any node. */
int jobs_claim(struct jobs_party *p, const char *run, const struct rdzv_event *ev, struct err *e);
/* Stop the job, as RDZV_DRAIN with this cause. principal NULL: anybody's; -EINVAL: several principals have a job of
 * that name. */
int jobs_drain_for(struct jobs *j, const char *principal, const char *run, const struct rdzv_cause *cause,
                   struct err *e);
/* The same in good order, for an operator. */
int jobs_drain(struct jobs *j, const char *principal, const char *run, struct err *e);
/* End the job at once, in any state: its members get an END that says why, and it is forgotten LEADER_LINGER_MS
 * later. who: the operator. principal NULL: as jobs_drain(). */
int jobs_evict(struct jobs *j, const char *principal, const char *run, const char *who, struct err *e);
/* End the job at once: its members get an END that says who stopped it, with the exit code of a SIGTERM. */
int jobs_stop(struct jobs *j, const char *principal, const char *run, const char *who, struct err *e);
/* A node's report. fields: a record (rdzv_wire.h); step, images_per_s and loss are kept, and all of it goes to the
 * watcher (jobs_watch.h). */
int jobs_report(struct jobs_party *p, const char *run, const char *node, const char *fields, size_t n, struct err *e);
/* The failure report of a failed job, from a node of it; goes to the watcher. */
int jobs_postmortem(struct jobs_party *p, const char *run, const char *node, const char *text, size_t n, struct err *e);

/* --- questions to the nodes of a job (reference/rendezvous-protocol.md, "Questions") */

#define JOBS_ASK_BYTES ((size_t)16 << 20) /* of all answers to one question */

struct jobs_asking;
struct jobs_ask {
    const char *what; /* "stacks", "logs" */
    int rank;         /* -1: all */
    int64_t ms;       /* ms until the caller calls jobs_ask_end() */
    /* All have answered, or the job is gone: call jobs_ask_end() now. Not called from inside jobs_ask(). */
    void (*answered)(void *arg);
    void *arg;
};
/* Ask all members of the job's round. ERR_REFUSED: it has no round; -EDQUOT: another question is under way. */
int jobs_ask(struct jobs_asking **ret, struct jobs *j, const char *principal, const char *run, const struct jobs_ask *q,
             struct err *e);
/* End a question, at any time. out: the answers so far, as JSON; NULL: not wanted. -ENOMEM. */
int jobs_ask_end(struct jobs_asking *a, struct buf *out);
int jobs_answer(struct jobs_party *p, const char *run, const char *node, uint64_t id, const char *text, size_t n,
                struct err *e);

/* --- what others may know */

/* The principal whose job this is: `principal`, or in a hosting crun the first that joined. NULL: there is no such
 * job. Borrowed until the next call that changes jobs. */
const char *jobs_owner(const struct jobs *j, const char *principal, const char *run);
/* Write the JSON of reference/protocol.md, section "Status". principal NULL: everybody's; run NULL: all jobs
 * ({"jobs":[...]}). A text has at most 2,000 nodes, events and restarts; of a run, nodes after the first `first`.
 * -ENOENT, -ENOMEM; -EINVAL: principal NULL, and several have this run. */
int jobs_status_from(const struct jobs *j, const char *principal, const char *run, size_t first, struct buf *out,
                     struct err *e);
/* While nodes gather (common/rdzv/leader/presence.h). */
int jobs_progress(const struct jobs *j, const char *principal, const char *run, struct presence *ret, struct err *e);
/* The same as one record. */
int jobs_status_brief(const struct jobs *j, const char *principal, const char *run, struct buf *out, struct err *e);

struct jobs_stats {
    size_t jobs, nodes, running; /* jobs that are not over; their nodes; how many of these jobs are in a round */
    uint64_t joins, rounds, restarts, fences, finished;
    uint64_t failed; /* of the finished */
    size_t damaged;  /* logs that were set aside: damaged when loaded, or of a job that a bug of ours ended */
    size_t unlogged; /* jobs not over that would be lost with this daemon, although it has a state directory */
};
void jobs_stats(const struct jobs *j, struct jobs_stats *ret);

/* Is every job over, and has every remaining party been told? Then a hosting crun may end. */
bool jobs_all_told(const struct jobs *j);

/* The callback is called when a principal's last job of a run id is forgotten: other things kept under that id can
 * be dropped. */
void jobs_on_forgotten(struct jobs *j, void (*forgotten)(void *arg, const char *principal, const char *run), void *arg);

#endif
