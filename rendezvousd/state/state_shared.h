/* The jobs of a daemon in a home that several daemons share (rdzv_home.h: a folder, an etcd, a Lease of Kubernetes):
 * all jobs have one log there, behind one claim, so that whoever claims has them all and whoever lost the claim writes
 * none. daemon/standby.h has the claim; this is the log.
 *
 *   @job ID BYTES whole|more\n      and BYTES of decisions (rdzv_log.h) of that job; whole: those before are void
 *   @gone ID\n                      the job was forgotten
 *   @reign ...\n                    the line of a claim (rdzv_reign.h): passed over
 *
 * Decisions wait in a line before the home (keeper.h); what waits together is written together. Beyond 1 MiB and four
 * times the newest whole text the log is written anew as one whole text, to which each job gives a whole decision. A
 * decision that the home does not take ends this daemon's term: nothing of it is announced. Loop thread only. */
#ifndef CRUN_RENDEZVOUSD_STATE_SHARED_H
#define CRUN_RENDEZVOUSD_STATE_SHARED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/rdzv/homes/rdzv_home.h"

/* In a folder that daemons share: who leads. A folder of one daemon alone has none. */
#define STATE_SHARED_CLAIM "crun-rendezvousd/claim"

struct state_shared;

struct state_shared_options {
    /* Write this after all that was written before; number goes up. -ENOMEM, or whatever ends the term: unable()
     * follows. Never called from outside of a term: the caller sees to that, and returns 0 then. */
    int (*write)(void *arg, const struct buf *text, bool whole, uint64_t number);
    void (*unable)(void *arg); /* a decision cannot be written: the term must end. Only queues */
    void *arg;
};

int state_shared_create(struct state_shared **ret, const struct state_shared_options *o, struct err *e); /* -ENOMEM */
/* Of the home whose claim is ours; the jobs' homes say so as theirs. Text: as rdzv_home_ops.load gave it. Then take()
 * for the home of each job, in the order of their ids; what is appended meanwhile is written as one whole text. If
 * take() returns ERR_CORRUPT that job is dropped, which is logged; another error ends this. ERR_CORRUPT: a text that
 * makes no sense. Once, before all other calls. */
int state_shared_take_over(struct state_shared *s, const char *identity, const char *text, size_t n,
                           int (*take)(void *arg, struct rdzv_home *h, struct err *e), void *arg, struct err *e);
/* The home of a new job, or of one that is taken over (state_dir_home()). */
int state_shared_home(struct state_shared *s, const char *id, struct rdzv_home **ret, struct err *e);
void state_shared_stands(struct state_shared *s, uint64_t number); /* what was written up to this number stands */
void state_shared_destroy(struct state_shared *s);                 /* all homes must have been closed; NULL allowed */

#endif
