/* A reign: one leader (leader.h) over one home (rdzv_home.h). It is what stands between a step of the leader and what
 * is announced of it, whoever leads: rendezvousd over its memory or its directory, a crun that hosts, an agent that was
 * elected over a Redis or a shared folder (all by rendezvousd/jobs), and tests/sim over simulated homes.
 *
 *   - the owner of the home, or whoever has its claim, begins: the home takes nothing of an older leader;
 *   - read the decisions so far into a fresh leader;
 *   - then append each change as one decision. What is not appended has not happened, and what does not stand is not
 *     announced.
 * No I/O but the home's, no clock: times are the caller's. */
#ifndef CRUN_COMMON_RDZV_REIGN_H
#define CRUN_COMMON_RDZV_REIGN_H

#include "common/rdzv/homes/rdzv_home.h"
#include "common/rdzv/leader/leader.h"

struct rdzv_reign {
    struct rdzv_home *home; /* these are the caller's to fill in */
    struct leader *leader;
    const char *holder; /* who leads, for people; borrowed */
    size_t
        keep_bytes; /* of decisions, beside four times the last whole one, before one says everything again; 0: 1 MiB */

    char epoch[RDZV_EPOCH_MAX + 1], identity[RDZV_IDENTITY_MAX + 1]; /* of the term, and of the home */

    char former_identity[RDZV_IDENTITY_MAX + 1]; /* of the home when the newest decision was made; "": there was none */
    bool lost;            /* a claim in another incarnation of the home has no decision behind it */
    size_t logged, whole; /* bytes since the newest whole decision, and of that */
};

/* The first line of the log of whoever claims: "@reign epoch= holder= home= claim=1". -ENOMEM. */
int rdzv_reign_record(const char *epoch, const char *holder, const char *identity, struct buf *out);
/* Take over what was decided; the leader has a machine then, unless there was no job. now() is asked when all is read:
 * members have their time from then on, and grace_ms more (leader_restore()). ERR_CORRUPT for a text that makes no
 * sense. */
int rdzv_reign_take_over(struct rdzv_reign *r, int64_t (*now)(const struct rdzv_reign *r), int64_t grace_ms,
                         struct err *e);
/* The home has lost what it acknowledged, or may have: the newest decision was made in another incarnation of it. */
bool rdzv_reign_has_loss(const struct rdzv_reign *r);

/* Append what is undecided, or all if `whole`. 1: it stands, or will (rdzv_reign_newest()); 0: another one leads. */
int rdzv_reign_decide(struct rdzv_reign *r, bool whole, int64_t now_ms, struct err *e);
/* Before the home is closed in good order: how old the job is now. */
void rdzv_reign_note_age(struct rdzv_reign *r, int64_t now_ms);
uint64_t rdzv_reign_newest(const struct rdzv_reign *r); /* number of the newest decision */
bool rdzv_reign_stands(const struct rdzv_reign *r, uint64_t number);

#endif
