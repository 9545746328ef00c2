/* The agent of one node: what to do when something happens. Pure: no I/O, no clock; agent_loop.c turns callbacks into
 * events and effects into calls.
 *
 * The life of an agent:
 *   - START: JOIN the rendezvous; it answers with a round: SPAWN the workers;
 *   - all workers exit 0: dismiss what they left behind, say DONE; when all nodes have, the rendezvous ENDs the job:
 *     EXIT 0.
 * What goes wrong, and what is done:
 *   - a worker ends badly: FAIL goes to the rendezvous, and the other workers are stopped at once, whatever it answers;
 *   - a worker hangs (hang.h): the same, as if it had failed;
 *   - the rendezvous stops the round (another node failed, or came): the same without FAIL;
 *   - stopping: reason into the shared pages, SIGTERM (in a drain that a signal began: that signal, on every node, and
 *     SIGTERM late in the grace), after the grace SIGKILL of the whole trees; when nobody is left: JOIN again, or EXIT
 *     where the job has ended (budget used up, drain);
 *   - the round ends because a node has come, and all workers outlive that (crun_stay_growing()): they are held as
 *     below, and nothing is saved;
 *   - where a worker that is left outlives rounds (crun_stay() of libcrun; --recovery), a failure here or elsewhere
 *     HOLDs them instead: such workers are notified to let go of the round, and acknowledge it (HELD); the others are
 *     stopped, those that hang killed. When each has let go or is dead, or --hold-timeout is over, CLEAR ends whoever
 *     is left but those that let go; then JOIN, as ever: nobody of the round can do harm any more. SPAWN starts the
 *     others beside them. While they wait for a round they are workers like any: a fence ends them at once, an end of
 *     the job stops them;
 *   - fenced (the rendezvous is not heard, or knows this node no longer): SIGKILL at once, because the next round may
 *     begin elsewhere; when nobody is left: JOIN again;
 *   - the rendezvous refuses this node for good: SIGKILL, EXIT with the code that says why;
 *   - a stop signal: this node leaves. LEAVE, stop the workers, JOIN to say that none is left, EXIT when the rendezvous
 *     lets it go: 75 if all workers ended with 0 or 75, else 128 + signal. The others go on without it, or drain where
 *     they are too few; another SIGINT, a second or more after the first one: no more grace (sooner it is the same wish
 *     sent twice: timeout(1) and some shells signal the process and its group), on every node if this one hosts the
 *     job (END comes while they stop); one that is typed counts at once. A
 *     third one is the guardian's matter: it gives this agent up (guard/patience.h);
 *   - a worker exits 75 by itself (its time is up, it saved): the same for the others; exit 75 if the others ended with
 *     0, 75 or by our SIGTERM, else with the code of the first that did not;
 *   - a preemption notice: as if a worker had exited 75, also where no worker runs; a worker that our SIGTERM ends is
 *     no fault then;
 *   - Ctrl-C where the worker has the terminal (`shared`): its own matter, as without crun; if it dies of it, or exits
 *     with 128 + signal, that was a stop signal; the same holds for the one of several workers that has the terminal;
 *   - a process that SIGKILL does not end: EXIT without a word to the rendezvous, which must not believe that nobody is
 *     left;
 *   - it is known before a round that this node's workers cannot be started: it waits for the others, and FAILs the
 *     round; or LEAVEs when it has waited long enough;
 *   - the round's workers cannot be started (no such interpreter, no descriptors left): the node leaves, exit with the
 *     code that says why, 126 or 127 for a program that cannot be executed. Where the others could not go on without it
 *     (`fatal`) it FAILs instead, so that the job ends with this code on every node: trying again would not help. */
#ifndef CRUN_LAUNCHER_AGENT_H
#define CRUN_LAUNCHER_AGENT_H

#include <stdbool.h>

#include "common/base/choice.h"
#include "common/rdzv/machine/rdzv.h"

#define AGENT_STATES(X)                                                                                                \
    X(AGENT_IDLE, "idle")           /* before START */                                                                 \
    X(AGENT_JOINING, "joining")     /* waits for a round, as do workers that are held */                               \
    X(AGENT_RUNNING, "running")     /* workers run */                                                                  \
    X(AGENT_HOLDING, "holding")     /* workers let go of the round, or are being stopped */                            \
    X(AGENT_STOPPING, "stopping")   /* workers are being stopped */                                                    \
    X(AGENT_CLEARING, "clearing")   /* all workers exited 0; what they left behind goes */                             \
    X(AGENT_FINISHING, "finishing") /* DONE is sent; other nodes still run */                                          \
    X(AGENT_PARTING, "parting")     /* no worker is left; this node waits to be let go */                              \
    X(AGENT_OVER, "over")           /* EXIT was the last effect */

#define AGENT_EVENTS(X)                                                                                                \
    X(AGENT_START, "start")                                                                                            \
    X(AGENT_NEWS, "news")              /* from the rendezvous */                                                       \
    X(AGENT_WORKER_ENDED, "ended")     /* a worker exited or was killed */                                             \
    X(AGENT_HUNG, "hung")              /* a worker makes no progress */                                                \
    X(AGENT_HELD, "held")              /* a worker has let go of the round */                                          \
    X(AGENT_SPAWN_FAILED, "unspawned") /* the round's workers cannot be started */                                     \
    X(AGENT_GONE, "gone")              /* no process of the round is left but those that are held */                   \
    X(AGENT_UNKILLABLE, "unkillable")  /* some are, and the kernel does not end them */                                \
    X(AGENT_SIGNAL, "signal")          /* a stop signal for crun */                                                    \
    X(AGENT_PREEMPTED, "preempted")    /* this node will be taken away: a notice of notices.h */                       \
    X(AGENT_GRACE_OVER, "grace-over")  /* of STOP, or the wait of AWAIT */                                             \
    X(AGENT_FENCED, "fenced")          /* the workers must not run any longer: another round may begin */              \
    X(AGENT_FAILED, "failed")          /* the rendezvous will not have this node, or cannot be reached */

#define AGENT_EFFECTS(X)                                                                                               \
    X(AGENT_DO_JOIN, "join") /* report to the rendezvous */                                                            \
    X(AGENT_DO_FAIL, "fail") /* report it, with `cause` */                                                             \
    X(AGENT_DO_DONE, "done")                                                                                           \
    X(AGENT_DO_LEAVE, "leave")                                                                                         \
    X(AGENT_DO_SPAWN, "spawn")     /* start the workers of `news` */                                                   \
    X(AGENT_DO_STOP, "stop")       /* `reason` into the pages, `signo`, start the grace */                             \
    X(AGENT_DO_HOLD, "hold")       /* notify who stays to let go, stop the others; GRACE_OVER after --hold-timeout */  \
    X(AGENT_DO_CLEAR, "clear")     /* SIGKILL whatever is left, with `keep` but for those that are held; then GONE */  \
    X(AGENT_DO_DISMISS, "dismiss") /* the same, but SIGTERM first and a few seconds */                                 \
    X(AGENT_DO_AWAIT, "await")     /* GRACE_OVER in AGENT_PART_MS, if NEWS_END does not come before */                 \
    X(AGENT_DO_EXIT, "exit")       /* with `code` */

enum agent_state { AGENT_STATES(CHOICE_ID) };
enum agent_event_kind { AGENT_EVENTS(CHOICE_ID) };
enum agent_effect_kind { AGENT_EFFECTS(CHOICE_ID) };

const char *agent_state_name(enum agent_state s);
const char *agent_event_name(enum agent_event_kind k);
const char *agent_effect_name(enum agent_effect_kind k);

struct agent_event {
    enum agent_event_kind kind;
    struct rdzv_news news; /* NEWS */
    /* WORKER_ENDED (exit_code 0: well), HUNG, FAILED, SPAWN_FAILED (fatal: no job without this node) */
    struct rdzv_cause cause;
    bool holds;     /* some worker that is left outlives rounds that break, and may */
    bool grows;     /* all workers outlive rounds that end because nodes come */
    bool was_held;  /* WORKER_ENDED */
    int signo;      /* SIGNAL; WORKER_ENDED: it shares the terminal and died of what was typed, else 0 */
    int64_t now_ms; /* SIGNAL: monotonic, above 0 */
    bool typed;     /* SIGNAL: on the terminal, not by kill(2) */
    bool shared;    /* SIGNAL: and the workers got it as well */
};

struct agent_effect {
    enum agent_effect_kind kind;
    struct rdzv_news news; /* SPAWN */
    /* FAIL; LEAVE: why, exit_code 0: in good order, `text` then the signal, "": none. fatal: after such a LEAVE, all
     * nodes that this one hosts are to end at once. */
    struct rdzv_cause cause;
    int reason; /* STOP: enum crun_stop_reason */
    int signo;  /* STOP: what the workers get */
    bool typed; /* STOP: those that share the terminal have it already */
    int code;   /* EXIT */
    bool keep;  /* CLEAR */
};

/* A rendezvous that does not answer delays a farewell by no more than this. */
#define AGENT_PART_MS 2000

#define AGENT_EFFECTS_MAX 4
struct agent_effects {
    struct agent_effect v[AGENT_EFFECTS_MAX];
    int n;
};

struct agent {
    enum agent_state state;
    int slots;  /* workers of this node */
    int live;   /* of them running */
    int held;   /* of these: have let go of their round, HOLDING and JOINING */
    bool ended; /* for this node the job is over: exit with `code` once everybody is gone */
    int code;
    int part_code;     /* PARTING: exit with it */
    bool released;     /* the rendezvous sent END or FAILED: it expects nothing more of this node */
    bool heard_round;  /* it has heard of a round, as a member or as a spare */
    bool had_seat;     /* it was a member of one */
    int spare_code;    /* exit code of a node that never was, when the job succeeds */
    bool done;         /* DONE was sent in this round */
    int signo;         /* the stop signal that began a drain, 0: none */
    int sent;          /* to the workers that are being stopped: to die of it is to obey */
    int64_t sigint_ms; /* of the first SIGINT, 0: none */
    bool preempted;    /* CLEARING: leave when DONE is sent */
    bool unclean;      /* draining: some worker ended with neither 0 nor 75 */
    int bad_code;  /* of the first worker that, being stopped, ended with neither 0 nor 75 nor by SIGTERM; 0: none */
    bool clearing; /* CLEAR was asked for in this round */
    bool keeping;  /* with `keep` */
    bool drains;   /* STOPPING in good order, because of another node or an operator */
};

void agent_init(struct agent *a, int slots, int spare_code);

/* They end a job whose workers here were stopping in good order. */
bool agent_news_leave_no_grace(const struct agent *a, const struct rdzv_news *news);

/* This is how a worker ends that obeys a stop: with 0, 75, or by the signal that it got. */
bool agent_obeyed(const struct agent *a, int code);

/* Apply one event; fx is overwritten. An event that means nothing in the current state changes nothing. */
void agent_step(struct agent *a, const struct agent_event *ev, struct agent_effects *fx);

#endif
