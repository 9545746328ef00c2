/* Whom do the others wait for, and why? Pure: what ten steps were made of on every rank in, a name out.
 *
 * How data flows: a worker reports to libcrun what each step was made of (crun_spent()), which stands in its page for
 * the newest 32 steps. straggler_watch.c reads ten steps of each worker, those of other nodes come to group rank 0 as
 * text (straggler_text.c), and this judges them every ten steps.
 *
 * In a step that ranks do together all take the same time: one works, the others wait for it. So ranks are compared by
 * what they do themselves:
 *
 *   own work = data + forward + backward + update, of each rank, against the median of the others in the same step
 *
 * A rank is a straggler where, over ten steps,
 *   - the median of its own work is 1.4 times that of the others or more (1 / 0.7, the score below which NVIDIA's
 *     resiliency extension calls a rank slow), and the difference is a tenth of the step at least;
 *   - its lower quartile is above 1.2 times the upper quartile of the others: the distributions are apart, which it
 *     takes slowness in most of the steps for. One step in ten that is a hundred times as long moves no quartile: that
 *     is jitter. Quartiles carry the noise of both sides with them, so no standard deviation has to be known, and two
 *     ranks are enough;
 *   - of four ranks or more: it is an outlier by the modified z-score of Iglewicz and Hoaglin (How to Detect and Handle
 *     Outliers, 1993), 0.6745 (x - median) / MAD > 3.5 over all ranks. Ranks of two kinds of machine have a large MAD,
 *     and none of them stands out. Median and MAD have a breakdown point of one half (Rousseeuw and Croux, Alternatives
 *     to the Median Absolute Deviation, 1993): whoever is slow does not hide itself by spoiling the measure.
 * It is named for data or compute, whichever makes more of the difference.
 *
 * A slow network makes all ranks wait alike. Where each of them waits for a fifth of the step or more, the links that
 * they have tried (crun_links()) are compared: a rank whose quickest link takes four times the median of the quickest
 * ones, or more, is the culprit; else, where two ranks alone have so slow a link, it is the one between them. The
 * difference is a twentieth of the step at least, and a millisecond; eight milliseconds where no other node is
 * concerned, for the ranks of one share its cores, and wait for them in the scheduler's time slices. Two ranks have
 * one link, and nothing to compare it with. A try in which a rank was off its core looks like a slow link, but the
 * next one does not: of the last two tries the quicker one counts, for each rank.
 *
 * Which processes share a core changes in parts of a second, however many steps these are. So nobody is named before
 * windows in a row that last STRAGGLER_LEAST_MS have shown the same. */
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

struct straggler_tries {              /* of a rank's links, as in straggler_rank; all-zero at first */
    uint32_t best_us[2], worst_us[2]; /* newest first */
};
/* Another window: puts the quicker one of the last two tries into v[n], and 0 where there was one alone. Numbers that
 * are all the same as before are those of the same try. */
void straggler_steady_links(struct straggler_tries *t, struct straggler_rank *v, int n);

struct straggler_verdict {
    int rank;
    int peer; /* the other end of a slow link; -1: the rank is slow, or all of its links are */
    enum straggler_class why;
    double mine_ms, others_ms; /* a step's own work, or a message there and back */
    double step_ms;            /* what a step took */
};

/* v[n], ranks 0..n-1. true: *ret is somebody; false: nobody is, or not all are known, or there is no memory. */
bool straggler_judge(const struct straggler_rank *v, int n, struct straggler_verdict *ret);

/* One sentence for people, "rank 3 is slow: ...". step: the last of the window. */
const char *straggler_text(const struct straggler_verdict *s, uint64_t step, const char *host, char *out, size_t cap);

/* Who was named already is not named again before so many windows without it. A slow rank includes its links; a slow
 * link says nothing of its rank. */
#define STRAGGLER_CALM 3
#define STRAGGLER_LEAST_MS 300
struct straggler_memory {
    struct straggler_verdict named, suspect;
    uint64_t since; /* the step before the first window in a row that shows the suspect */
    int calm;       /* windows since it was seen; STRAGGLER_CALM and above: nobody is named */
    bool any, suspects;
};
/* Is this to be reported? found NULL: a window without a straggler. step: the last of the window. */
bool straggler_is_news(struct straggler_memory *m, const struct straggler_verdict *found, uint64_t step);

#endif
