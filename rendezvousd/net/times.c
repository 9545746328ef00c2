/* Counts durations in a histogram (times.h). */
#include "rendezvousd/net/times.h"

const double times_bounds_s[TIMES_BOUNDS] = {1e-5, 1e-4, 1e-3, 1e-2, 2e-2, 5e-2, 0.5};

void times_add(struct times *t, double seconds)
{
    int i = 0;
    while (i < TIMES_BOUNDS && seconds > times_bounds_s[i])
        i++;
    t->counts[i]++;
    t->sum_s += seconds;
    t->longest_s = seconds > t->longest_s ? seconds : t->longest_s;
}
