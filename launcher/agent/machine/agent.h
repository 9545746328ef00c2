/* The agent of one node: what to do when something happens. Pure: no I/O, no clock; agent_loop.c turns callbacks into
 * events and effects into calls.
 *
 * The life of an agent (what happens in each case stands in docs/design/agent.md, too):
 *   - START: JOIN the rendezvous; it answers with a round: SPAWN the workers;
 *   - all workers exit with 0: end what they left behind, send DONE; when all nodes have, the rendezvous ENDs the job:
 *     EXIT 0.
 * What goes wrong, and what is done:
 *   - a worker fails: FAIL goes to the rendezvous, and the other workers are stopped at once, whatever it answers;
 *   - a worker hangs (hang.h): the same, as if it had failed;
 *   - the rendezvous stops the round (another node failed, or came): the same without FAIL;
 *   - stopping: write the reason into the shared pages, send SIGTERM (in a drain that a signal began: that signal, on
 *     every node, and SIGTERM late in the grace); after the grace SIGKILL the whole trees; when no process is left JOIN
 *     again, or EXIT if the job has ended (budget used up, drain);
 *   - the round ends because a node has come, and all workers outlive that (crun_stay_growing()): they are held as
 *     below, and nothing is saved;
 *   - if a remaining worker outlives rounds (crun_stay() of libcrun; --recovery), a failure here or elsewhere HOLDs
 *     such workers instead: each is asked to let go of the round, and acknowledges it (HELD). The others are stopped,
 *     hung ones killed. When each worker has let go or is dead, or --hold-timeout is over, CLEAR kills all processes
 *     but the held ones; then JOIN: nothing of the round can do harm any more. SPAWN starts new workers beside the held
 *     ones. While held workers wait for a round, a fence kills them at once, and an end of the job stops them, as any
 *     worker;
 *   - fenced (the rendezvous is not heard, or does not know this node any more): SIGKILL at once, because the next
 *     round may begin elsewhere; when no process is left JOIN again;
 *   - the rendezvous refuses this node for good: SIGKILL, EXIT with the code that says why;
 *   - a stop signal: this node leaves. LEAVE, stop the workers, JOIN to say that none is left, EXIT when the rendezvous
 *     lets it go: 75 if all workers ended with 0 or 75, else 128 + signal. The others go on without it, or drain if
 *     they are too few. Another SIGINT, a second or more after the first, ends the grace, on every node if this one
 *     hosts the job (END comes while they stop). If it comes sooner it counts as the same one, because timeout(1) and
 *     some shells signal the process and its group; a typed one counts at once. At a third SIGINT the guardian gives
 *     this agent up (guard/patience.h);
 *   - a worker exits 75 by itself (its time is up, it saved): the same for the others; exit 75 if the others ended with
 *     0, 75 or by our SIGTERM, else with the code of the first that did not;
 *   - a preemption notice: as if a worker had exited 75, even if no worker runs; a worker that our SIGTERM ends is not
 *     counted as a failure then;
 *   - Ctrl-C if the worker has the terminal (`shared`): the worker handles it, as without crun; if it dies of it, or
 *     exits with 128 + signal, that counts as a stop signal; the same if one of several workers has the terminal;
 *   - a process that SIGKILL does not end: EXIT without telling the rendezvous, which must not believe that no process
 *     is left;
 *   - this node knows before a round that it cannot start workers: it waits for the others, and FAILs the round; or
 *     LEAVEs when it has waited long enough;
 *   - the round's workers cannot be started (no such interpreter, no descriptors left): the node leaves and exits
 *     with the code that says why, 126 or 127 for a program that cannot be executed. If the others cannot go on
 *     without it (`fatal`), it FAILs instead, so that the job ends with this code on every node: trying again would
 *     not help. */
#ifndef CRUN_LAUNCHER_AGENT_H
#define CRUN_LAUNCHER_AGENT_H

#include <stdbool.h>

#include "common/base/choice.h"
#include "common/rdzv/machine/rdzv.h"

#define AGENT_STATES(X)                                                                                                \
    X(AGENT_IDLE, "idle")           /* before START */                                                                 \
    X(AGENT_JOINING, "joining")     /* waits for a round, perhaps with held workers */                                 \
    X(AGENT_RUNNING, "running")     /* workers run */                                                                  \
    X(AGENT_HOLDING, "holding")     /* workers let go of the round, or are being stopped */                            \
    X(AGENT_STOPPING, "stopping")   /* workers are being stopped */                                                    \
    X(AGENT_CLEARING, "clearing")   /* all workers exited with 0; what they left behind is ended */                    \
    X(AGENT_FINISHING, "finishing") /* DONE is sent; other nodes still run */                                          \
    X(AGENT_PARTING, "parting")     /* no worker is left; waits until the rendezvous lets this node go */              \
    X(AGENT_OVER, "over")           /* EXIT was the last effect */

#define AGENT_EVENTS(X)                                                                                                \
    X(AGENT_START, "start")                                                                                            \
    X(AGENT_NEWS, "news")              /* from the rendezvous */                                                       \
    X(AGENT_WORKER_ENDED, "ended")     /* a worker exited or was killed */                                             \
    X(AGENT_HUNG, "hung")              /* a worker makes no progress */                                                \
    X(AGENT_HELD, "held")              /* a worker has let go of the round */                                          \
    X(AGENT_SPAWN_FAILED, "unspawned") /* the round's workers cannot be started */                                     \
    X(AGENT_GONE, "gone")              /* no process of the round is left, except held workers */                      \
    X(AGENT_UNKILLABLE, "unkillable")  /* processes are left that the kernel does not end */                           \
    X(AGENT_SIGNAL, "signal")          /* a stop signal for crun */                                                    \
    X(AGENT_PREEMPTED, "preempted")    /* this node will be taken away: notices.h got a notice */                      \
    X(AGENT_GRACE_OVER, "grace-over")  /* of STOP, or the wait of AWAIT */                                             \
    X(AGENT_FENCED, "fenced")          /* the workers must not run any longer, because another round may begin */      \
    X(AGENT_FAILED, "failed")          /* the rendezvous refuses this node, or cannot be reached */

#define AGENT_EFFECTS(X)                                                                                               \
    X(AGENT_DO_JOIN, "join") /* report to the rendezvous */                                                            \
    X(AGENT_DO_FAIL, "fail") /* report it, with `cause` */                                                             \
    X(AGENT_DO_DONE, "done")                                                                                           \
    X(AGENT_DO_LEAVE, "leave")                                                                                         \
    X(AGENT_DO_SPAWN, "spawn")     /* start the workers of `news` */                                                   \
    X(AGENT_DO_STOP, "stop")       /* write `reason` into the pages, send `signo`, start the grace */                  \
    X(AGENT_DO_HOLD, "hold")       /* workers that stay let go, the others stop; GRACE_OVER after --hold-timeout */    \
    X(AGENT_DO_CLEAR, "clear")     /* SIGKILL all that is left, with `keep` all but held workers; then GONE */         \
    X(AGENT_DO_DISMISS, "dismiss") /* the same, after SIGTERM and a few seconds */                                     \
    X(AGENT_DO_AWAIT, "await")     /* GRACE_OVER follows after AGENT_PART_MS, unless NEWS_END comes before */          \
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
    /* why: WORKER_ENDED (exit_code 0: no error), HUNG, FAILED, SPAWN_FAILED (fatal: the job needs this node) */
    struct rdzv_cause cause;
    bool holds;     /* a remaining worker outlives broken rounds, and is allowed to */
    bool grows;     /* all workers outlive rounds that end because nodes join */
    bool was_held;  /* WORKER_ENDED */
    int signo;      /* SIGNAL; WORKER_ENDED: it shares the terminal and died of a typed signal, else 0 */
    int64_t now_ms; /* SIGNAL: monotonic, above 0 */
    bool typed;     /* SIGNAL: on the terminal, not by kill(2) */
    bool shared;    /* SIGNAL: the workers got it as well */
};

struct agent_effect {
    enum agent_effect_kind kind;
    struct rdzv_news news; /* SPAWN */
    /* FAIL; LEAVE: the reason; with exit_code 0: in good order, and `text` is the signal, "": none. fatal: after
     * such a LEAVE, all nodes of a job that this node hosts must end at once */
    struct rdzv_cause cause;
    int reason; /* STOP: enum crun_stop_reason */
    int signo;  /* STOP: what the workers get */
    bool typed; /* STOP: workers that share the terminal have got the signal already */
    int code;   /* EXIT */
    bool keep;  /* CLEAR */
};

/* ms: a rendezvous that does not answer delays this agent's exit by no more than this */
#define AGENT_PART_MS 2000

#define AGENT_EFFECTS_MAX 4
struct agent_effects {
    struct agent_effect v[AGENT_EFFECTS_MAX];
    int n;
};

struct agent {
    enum agent_state state;
    int slots;  /* workers of this node */
    int live;   /* how many of them run */
    int held;   /* number of these that have let go of their round (HOLDING and JOINING) */
    bool ended; /* the job is over for this node: exit with `code` once no process is left */
    int code;
    int part_code;     /* exit code while PARTING */
    bool released;     /* the rendezvous sent END or FAILED: it expects nothing more from this node */
    bool heard_round;  /* this node has heard of a round, as a member or as a spare */
    bool had_seat;     /* it was a member of a round */
    int spare_code;    /* exit code, if the job succeeds, of a node that never had a part in it */
    bool done;         /* DONE was sent in this round */
    int signo;         /* the stop signal that began a drain; 0: none */
    int sent;          /* signal sent to workers that are being stopped: dying of it counts as obeying */
    int64_t sigint_ms; /* of the first SIGINT, 0: none */
    bool preempted;    /* CLEARING: leave when DONE is sent */
    bool unclean;      /* draining: some worker ended with neither 0 nor 75 */
    bool rough;        /* some worker of the newest round ended with neither 0 nor 75 */
    /* exit code of the first worker that, when stopped, ended neither with 0 or 75 nor by SIGTERM; 0: none */
    int bad_code;
    bool clearing; /* CLEAR was asked for in this round */
    bool keeping;  /* with `keep` */
    bool drains;   /* STOPPING in good order, for another node or an operator */
};

void agent_init(struct agent *a, int slots, int spare_code);

/* Do these news end a job whose workers here were stopping in good order, so that their grace is over? */
bool agent_news_leave_no_grace(const struct agent *a, const struct rdzv_news *news);

/* Does a worker that ends with this code obey a stop? With 0, 75, or by the signal that it got. */
bool agent_obeyed(const struct agent *a, int code);

/* Apply one event; fx is overwritten. An event that means nothing in the current state changes nothing. */
void agent_step(struct agent *a, const struct agent_event *ev, struct agent_effects *fx);

/* Abort if a rule is broken that holds after each step; agent_step() calls it. */
void agent_check(const struct agent *a, const struct agent_effects *fx);

#endif
