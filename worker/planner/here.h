/* A planner among the ranks that are here: they meet, and plan over a communicator of their own. */
#ifndef CRUN_WORKER_HERE_H
#define CRUN_WORKER_HERE_H

#include <stdbool.h>

#include "worker/comm/comm.h"
#include "worker/meet/meet.h"
#include "worker/planner/planner.h"

struct env_contract;
struct err;

/* --network, before any rank begins: predicts: a time is predicted at all, so that it serves something. */
int here_check(const struct train_config *cfg, bool predicts, struct err *e);

struct here {
    struct meet meet;
    struct comm_options opened;
    struct comm *comm; /* NULL: one rank alone */
    struct planner *planner;
};

/* env: of this process among those that are here; world, local_world: of the run that is planned. Errors of
 * meet_open(), comm_open(), planner_open(); on failure everything is closed. */
int here_open(struct here *h, const struct train_config *cfg, const struct env_contract *env, int world,
              int local_world, struct err *e);
/* failed: nobody is waited for, nor may wait for us. keep: the meeting goes on there; NULL: it ends. */
void here_close(struct here *h, bool failed, struct meet *keep);

/* --auto-parallel: choose, and say why on stderr. *ret: the options of the run, as cfg but for what was chosen; *meet:
 * where the ranks have met, for the run to go on with. All ranks of the run. */
int here_choose(const struct train_config *cfg, const struct env_contract *env, struct train_config *ret,
                struct meet *meet, struct err *e);

#endif
