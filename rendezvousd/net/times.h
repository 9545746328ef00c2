/* Histogram of durations: counted by upper bounds, as in Prometheus. Pure. */
#ifndef CRUN_RENDEZVOUSD_TIMES_H
#define CRUN_RENDEZVOUSD_TIMES_H

#include <stdint.h>

#define TIMES_BOUNDS 7

extern const double times_bounds_s[TIMES_BOUNDS]; /* ascending */

struct times {
    uint64_t counts[TIMES_BOUNDS + 1]; /* the last one: beyond all bounds */
    double sum_s, longest_s;
};

void times_add(struct times *t, double seconds);

#endif
