/* A reign: one leader (leader.h) over one home (rdzv_home.h). It stores each step of the leader before the step is
 * announced, whoever leads: rendezvousd over its memory or its directory, a crun that hosts, an agent that was elected
 * over a Redis or a shared folder (all by rendezvousd/jobs), and tests/sim over simulated homes.
 *
 *   - it begins when this process owns the home or has its claim: from then on the home refuses older leaders;
 *   - read the decisions so far into a fresh leader;
 *   - then append each change as one decision. A change that is not appended has not happened; one that is not stored
 *     yet is not announced.
 * No I/O but the home's, no clock: times are the caller's. */
#ifndef CRUN_COMMON_RDZV_REIGN_H
#define CRUN_COMMON_RDZV_REIGN_H

#include "common/rdzv/homes/rdzv_home.h"
#include "common/rdzv/leader/leader.h"

struct rdzv_reign {
    struct rdzv_home *home; /* the caller fills in this and the next three */
    struct leader *leader;
    const char *holder; /* who leads, for people; borrowed */
    /* bytes of decisions, beyond four times the newest whole one, after which a whole one is written again; 0: 1 MiB */
    size_t keep_bytes;

    char epoch[RDZV_EPOCH_MAX + 1], identity[RDZV_IDENTITY_MAX + 1]; /* epoch of this reign; identity of the home */

    /* identity of the home when the newest decision was made; "": there was none */
    char former_identity[RDZV_IDENTITY_MAX + 1];
    bool lost;            /* another incarnation of the home has a claim, but no decision of that reign */
    size_t logged, whole; /* bytes of decisions since the newest whole one; bytes of that one */
};

/* Write the line that begins the log of a node that claims: "@reign epoch= holder= home= claim=1". -ENOMEM. */
int rdzv_reign_record(const char *epoch, const char *holder, const char *identity, struct buf *out);
/* Read all decisions into the leader; it has a machine then, unless there was no job. now() is called after the
 * reading: members' silence counts from then on, plus grace_ms (leader_restore()). ERR_CORRUPT: a text that makes no
 * sense. */
int rdzv_reign_take_over(struct rdzv_reign *r, int64_t (*now)(const struct rdzv_reign *r), int64_t grace_ms,
                         struct err *e);
/* Has the home lost something that it acknowledged, or may it have? (The newest decision was made in another
 * incarnation.) */
bool rdzv_reign_has_loss(const struct rdzv_reign *r);

/* Append what is undecided, or everything if `whole`. 1: stored, or under way (rdzv_reign_newest()); 0: another node
 * leads. */
int rdzv_reign_decide(struct rdzv_reign *r, bool whole, int64_t now_ms, struct err *e);
/* Record how old the job is; call before the home is closed in good order. */
void rdzv_reign_note_age(struct rdzv_reign *r, int64_t now_ms);
uint64_t rdzv_reign_newest(const struct rdzv_reign *r); /* number of the newest decision */
bool rdzv_reign_stands(const struct rdzv_reign *r, uint64_t number);

#endif
