/* How long a step of a run would take, and which of all ways to spread a run over its ranks is the fastest that fits.
 *
 *   plans.h: every way -> session/forecast.h: who holds how much -> of those that fit: op_times.h, measured once each
 *   -> rank_step.h: what each stage does -> simulate.h: seconds -> planner_pick()
 *
 * All ranks that are here call these together: operations are measured by planner_measures() of them side by side,
 * transfers by pairs of them. Results are rank 0's. Blocks for as long as measuring takes,
 * some seconds; each wait for others has the communicator's deadline. Training thread. */
#ifndef CRUN_WORKER_PLANNER_H
#define CRUN_WORKER_PLANNER_H

#include <stdbool.h>

#include "worker/config/config.h"
#include "worker/planner/network.h"
#include "worker/planner/plans.h"

struct comm;
struct comm_options;
struct err;
struct forecast_base;
struct op_times;

struct planner_options {
    const struct train_config *cfg;
    int world, local_world;            /* of the run that is planned */
    int rank, place, node;             /* of this process; place: env_contract_place() */
    struct comm *comm;                 /* of those that are here; NULL: one rank alone */
    const struct comm_options *opened; /* as comm was */
    int hardware;                      /* enum hardware_id of the machines; -1: this one, which is measured */
    bool tells;                        /* a line on stderr meanwhile; rank 0 alone does */
};

/* Ranks of a node that measure operations at once. All of them; of more than there are processors for, two for each
 * processor: those that take turns at one throw each other's data out of its caches, and more do not change that.
 * Pure but for the processors that are here. */
int planner_measures(const struct train_config *cfg, int local_world);

struct planner;
/* Opens the data and the device, and measures what does not depend on a plan. ERR_USAGE: links between nodes are wanted
 * that are not here and that no option gives; -ENOTSUP: a device whose operations are not timed. With hardware nothing
 * is measured, and comm is NULL. */
int planner_open(struct planner **ret, const struct planner_options *o, struct err *e);
void planner_close(struct planner *p);

struct prediction {
    double seconds;           /* of a step */
    double computes, reduces; /* of the rank that computes most: on its training thread, calls included; what its
                                    communication thread does meanwhile */
    int64_t need;             /* bytes of the rank that holds most */
};

/* Of a run with these options, which differ from planner_open()'s in how they spread it alone. */
int planner_predict(struct planner *p, const struct train_config *cfg, struct prediction *ret, struct err *e);

const struct network *planner_network(const struct planner *p);
struct hardware;
const struct hardware *planner_hardware(const struct planner *p); /* NULL: this machine */

/* One way of all. */
struct planner_row {
    struct parallel_plan plan;
    struct prediction as;
    bool fits, timed;
};

/* Predictions of plans of 1 and 2 ranks err by 5.3 % of a step (standard deviation; docs/design/measurements.md), and
 * what two of them differ by errs by sqrt(2) times as much, 7.4 %: a lead of less says nothing. */
#define PLANNER_TELLS 0.08

struct planner_choice {
    struct planner_row *rows; /* those that are possible; rank 0's are whole */
    int n, chosen, next;      /* rows; -1: none; next: the fastest of the others */
    int alike;                /* rows within PLANNER_TELLS of the fastest one, it too */
};

/* Fill in chosen, next and alike: of the rows that are timed and within PLANNER_TELLS of the fastest one the simplest
 * (plans_simpler()). Pure. */
void planner_pick(struct planner_choice *c);

/* limit: bytes of a rank; 0: none. ERR_USAGE: nothing fits; it names the smallest need. Freed with
 * planner_choice_free(). */
int planner_choose(struct planner *p, int64_t limit, struct planner_choice *ret, struct err *e);
void planner_choice_free(struct planner_choice *c);

/* Why the chosen one: a sentence without an end. Returns out. */
char *planner_why(const struct planner_choice *c, char *out, size_t cap);

/* The table: chosen and why, the fastest of the others, what does not fit and by how much. malloc'ed. */
int planner_table(const struct planner_choice *c, int64_t limit, char **ret, struct err *e);

#endif
