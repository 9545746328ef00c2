/* Decides when to ask NCCL's RAS, and what follows from its answers. Pure: times of signs of life and answers in,
 * actions out; hang_witness.c takes the signs and asks.
 *
 * How it goes:
 *   - if no worker of the job has read or written a byte, and no key of the store has changed, for quiet_ns: ask.
 *     Processor time does not count, because ranks that wait for NCCL poll; nor does reading a key. After such a time
 *     no communicator is being made either, because that needs keys and bytes;
 *   - if counts differ, or RAS does not reach some ranks: ask again quiet_ns / 6 later. If no count has changed, and
 *     the ranks behind have given no sign of life, not even processor time, for quiet_ns, they are named. A rank 0 that
 *     saves or evaluates gives signs, so it is not named;
 *   - if all counts are equal, RAS cannot tell. Ask again quiet_ns later, and after ever longer pauses, up to
 *     WITNESS_SELDOM times that, if counts never change (CUDA graphs, only sends and receives);
 *   - a sign of life of one named rank clears them all. */
#ifndef CRUN_LAUNCHER_WITNESS_H
#define CRUN_LAUNCHER_WITNESS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/choice.h"
#include "launcher/witness/ras_answer.h"

#define WITNESS_QUIET_NS INT64_C(60000000000)
#define WITNESS_AGAIN 6   /* divisor of quiet_ns: pause before the second question */
#define WITNESS_SELDOM 10 /* times quiet_ns: the longest pause between questions while all counts are equal */

#define WITNESS_STATES(X)                                                                                              \
    X(WITNESS_WATCHING, "watching")       /* for a time without signs */                                               \
    X(WITNESS_ASKED, "asked")             /* the first question is on its way */                                       \
    X(WITNESS_BETWEEN, "between")         /* counts differ: the second question is due */                              \
    X(WITNESS_ASKED_AGAIN, "asked again") /* it is on its way */                                                       \
    X(WITNESS_NAMED, "named")             /* whom the others wait for is known */                                      \
    X(WITNESS_MUTE, "mute")               /* do not ask this NCCL any more in this round */
enum witness_state { WITNESS_STATES(CHOICE_ID) };

enum witness_act {
    WITNESS_NOTHING,
    WITNESS_ASK,
    WITNESS_NAME, /* say verdict.text */
    WITNESS_BUSY, /* verdict.text is set, but the late ranks give signs of life */
    WITNESS_FREE, /* those who were named go on */
};

struct witness {
    enum witness_state state;
    int64_t quiet_ns;
    int world;
    int64_t due_ns, pause_ns; /* time before which nothing is asked; pause between questions */
    int64_t asked_ns, named_ns;
    struct ras_answer first; /* the answer before, n_comms 0: none */
    struct ras_verdict verdict;
};

void witness_init(struct witness *w, int64_t quiet_ns);
int witness_begin_round(struct witness *w, int64_t now_ns, int world); /* -ENOMEM */
void witness_end_round(struct witness *w);                             /* all-zero allowed */

/* active_ns: when a worker last read or wrote a byte, or a key changed. lived_ns: (world) last signs of life.
 * Returns WITNESS_ASK, WITNESS_FREE or WITNESS_NOTHING. */
enum witness_act witness_look(struct witness *w, int64_t now_ns, int64_t active_ns, const int64_t *lived_ns);

/* The answer to a question; *a is taken over. An NCCL that is too old is not asked again in this round. */
enum witness_act witness_hear(struct witness *w, int64_t now_ns, struct ras_answer *a, const int64_t *lived_ns);
/* No answer came. too_old: none ever will. */
void witness_miss(struct witness *w, int64_t now_ns, bool too_old);

bool witness_names(const struct witness *w, int rank); /* it is late, and named */

#endif
