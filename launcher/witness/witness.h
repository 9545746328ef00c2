/* When NCCL's RAS is asked, and what follows from its answers. Pure: times of signs of life and answers in, what to do
 * out; hang_witness.c takes the signs and asks.
 *
 * How it goes:
 *   - no worker of the job has read or written a byte, and no key of the store has changed, for quiet_ns: a question.
 *     Processor time does not count, for ranks that wait for NCCL poll; nor does looking at a key. After so long no
 *     communicator is being made, for that takes keys and bytes;
 *   - counts that differ, or ranks that RAS does not reach: a second question quiet_ns / 6 later. If no count has
 *     moved, and the ranks behind have given no sign of life, processor time included, for quiet_ns: they are named. A
 *     rank 0 that saves or evaluates gives signs, so it is not;
 *   - all alike: RAS cannot tell. The next question comes quiet_ns later, and where counts never move (CUDA graphs,
 *     only sends and receives) ever later, up to WITNESS_SELDOM times that;
 *   - a sign of life of a rank that is named frees all. */
#ifndef CRUN_LAUNCHER_WITNESS_H
#define CRUN_LAUNCHER_WITNESS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/choice.h"
#include "launcher/witness/ras_answer.h"

#define WITNESS_QUIET_NS INT64_C(60000000000)
#define WITNESS_AGAIN 6   /* the second question comes after this part of quiet_ns */
#define WITNESS_SELDOM 10 /* times quiet_ns: the longest pause between questions whose answers are all alike */

#define WITNESS_STATES(X)                                                                                              \
    X(WITNESS_WATCHING, "watching")       /* for a time without signs */                                               \
    X(WITNESS_ASKED, "asked")             /* the first question is on its way */                                       \
    X(WITNESS_BETWEEN, "between")         /* something differs: the second one is to come */                           \
    X(WITNESS_ASKED_AGAIN, "asked again") /* it is on its way */                                                       \
    X(WITNESS_NAMED, "named")             /* whom the others wait for is known */                                      \
    X(WITNESS_MUTE, "mute")               /* this NCCL is not asked any more in this round */
enum witness_state { WITNESS_STATES(CHOICE_ID) };

enum witness_act {
    WITNESS_NOTHING,
    WITNESS_ASK,
    WITNESS_NAME, /* say verdict.text */
    WITNESS_BUSY, /* verdict.text holds, but those who are late do something */
    WITNESS_FREE, /* those who were named go on */
};

struct witness {
    enum witness_state state;
    int64_t quiet_ns;
    int world;
    int64_t due_ns, pause_ns; /* no question before; from one to the next */
    int64_t asked_ns, named_ns;
    struct ras_answer first; /* the answer before, n_comms 0: none */
    struct ras_verdict verdict;
};

void witness_init(struct witness *w, int64_t quiet_ns);
int witness_begin_round(struct witness *w, int64_t now_ns, int world); /* -ENOMEM */
void witness_end_round(struct witness *w);                             /* all-zero allowed */

/* active_ns: when a worker last read or wrote a byte, or a key changed. lived_ns: (world) last signs of life.
 * WITNESS_ASK, WITNESS_FREE or WITNESS_NOTHING. */
enum witness_act witness_look(struct witness *w, int64_t now_ns, int64_t active_ns, const int64_t *lived_ns);

/* The answer; taken over. An NCCL that is too old is not asked again in this round. */
enum witness_act witness_hear(struct witness *w, int64_t now_ns, struct ras_answer *a, const int64_t *lived_ns);
/* There is none. too_old: and will not be. */
void witness_miss(struct witness *w, int64_t now_ns, bool too_old);

bool witness_names(const struct witness *w, int rank); /* it is late, and named */

#endif
