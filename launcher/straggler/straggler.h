/* Finds the rank that the others wait for, and why. Pure: the parts of ten steps of every rank in, a verdict out.
 *
 * How data flows: a worker reports to libcrun what each step was made of (crun_spent()), and its page keeps the newest
 * 32 steps. straggler_watch.c reads ten steps of each worker; those of other nodes come to group rank 0 as text
 * (straggler_steps.c). This module judges them every ten steps.
 *
 * In a step that ranks do together all take the same time: one works, the others wait for it. So ranks are compared by
 * what they do themselves:
 *
 *   own work = data + forward + backward + update, of each rank, against the median of the others in the same step
 *
 * A rank is a straggler if, over ten steps,
 *   - the median of its own work is 1.4 times that of the others or more (1 / 0.7, the score below which NVIDIA's
 *     resiliency extension calls a rank slow), and the difference is a tenth of the step at least;
 *   - its lower quartile is above 1.2 times the upper quartile of the others: the distributions do not overlap, so it
 *     is slow in most of the steps. One step in ten that takes a hundred times as long moves no quartile: that is
 *     jitter. Quartiles contain the noise of both sides, so no standard deviation is needed, and two ranks are enough;
 *   - of four ranks or more: it is an outlier by the modified z-score of Iglewicz and Hoaglin (How to Detect and Handle
 *     Outliers, 1993), 0.6745 (x - median) / MAD > 3.5 over all ranks. Ranks of two kinds of machine have a large MAD,
 *     and none of them stands out. Median and MAD have a breakdown point of one half (Rousseeuw and Croux, Alternatives
 *     to the Median Absolute Deviation, 1993): a slow rank cannot hide by distorting them.
 * The verdict is "data" or "compute", whichever contributes more to the difference.
 *
 * A slow network makes all ranks wait alike. If each of them waits for a fifth of the step or more, the links that they
 * have tried (crun_links()) are compared: a rank whose fastest link takes at least four times the median of the fastest
 * links is the culprit; else, if just two ranks have so slow a link, it is the link between them. The difference must
 * be at least a twentieth of the step, and a millisecond; eight milliseconds within one node, whose ranks share cores,
 * and wait for them in the scheduler's time slices. With two ranks there is one link, and nothing to compare it with. A
 * try in which a rank was off its core looks like a slow link, but the next one does not: for each rank the faster of
 * the last two tries counts.
 *
 * Which processes share a core changes within parts of a second, however many steps these are. So a rank is named
 * only if consecutive windows that last STRAGGLER_LEAST_MS have shown the same. */
#ifndef CRUN_LAUNCHER_STRAGGLER_H
#define CRUN_LAUNCHER_STRAGGLER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/choice.h"

#define STRAGGLER_STEPS 10

#define STRAGGLER_CLASSES(X)                                                                                           \
    X(STRAGGLER_DATA, "data")                                                                                          \
    X(STRAGGLER_COMPUTE, "compute")                                                                                    \
    X(STRAGGLER_NETWORK, "network")
enum straggler_class { STRAGGLER_CLASSES(CHOICE_ID) };
const char *straggler_class_name(enum straggler_class c);

struct straggler_rank { /* of one window */
    bool known;         /* all that follows is there */
    int node;           /* its first rank */
    uint32_t data_us[STRAGGLER_STEPS], compute_us[STRAGGLER_STEPS], wait_us[STRAGGLER_STEPS];
    uint32_t best_us, worst_us; /* of its links, + 1; 0: not reported */
};

struct straggler_tries { /* the last tries of a rank's links, as in struct straggler_rank; zeroed at first */
    uint32_t best_us[2], worst_us[2]; /* newest first */
};
/* A new window: put the faster one of the last two tries into v[n], 0 if there was only one. Numbers that equal the
 * last ones are of the same try. */
void straggler_steady_links(struct straggler_tries *t, struct straggler_rank *v, int n);

struct straggler_verdict {
    int rank;
    int peer; /* the other end of a slow link; -1: the rank itself is slow, or all of its links are */
    enum straggler_class why;
    double mine_ms, others_ms; /* own work in a step, or time of a message and its answer; the others' median */
    double step_ms;            /* what a step took */
};

/* v[n], ranks 0..n-1. true: *ret names a straggler; false: there is none, or a rank is not known, or no memory. */
bool straggler_judge(const struct straggler_rank *v, int n, struct straggler_verdict *ret);

/* One sentence for people, "rank 3 is slow: ...". step: last step of the window. */
const char *straggler_text(const struct straggler_verdict *s, uint64_t step, const char *host, char *out, size_t cap);

/* What was named: it is named again only after STRAGGLER_CALM windows without it. Naming a slow rank covers its
 * links; naming a slow link does not cover its rank. */
#define STRAGGLER_CALM 3
#define STRAGGLER_LEAST_MS 300
struct straggler_memory {
    struct straggler_verdict named, suspect;
    uint64_t since; /* the step before the first of the consecutive windows that show the suspect */
    int calm;       /* windows since it was seen; STRAGGLER_CALM or more: nothing counts as named */
    bool any, suspects;
};
/* Must this be reported? found NULL: a window without a straggler. step: last step of the window. */
bool straggler_is_news(struct straggler_memory *m, const struct straggler_verdict *found, uint64_t step);

#endif
