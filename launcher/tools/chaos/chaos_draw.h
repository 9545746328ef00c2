/* Turns a plan and a seed into a sequence of faults: when, what, on which node, for how long.
 *
 * The same plan, seed and targets (how many nodes, and what each has) give the same sequence on every machine: it is
 * drawn before anything is done, in integers. Pure. */
#ifndef CRUN_LAUNCHER_CHAOS_DRAW_H
#define CRUN_LAUNCHER_CHAOS_DRAW_H

#include <stddef.h>
#include <stdint.h>

#include "launcher/tools/chaos/chaos_plan.h"

struct chaos_targets;
struct err;

struct chaos_part {
    const struct chaos_act *act; /* in the plan */
    int node;                    /* -1: any node */
    int64_t lasts_ms;
    uint64_t pick; /* chooses among several */
};

struct chaos_fault {
    int64_t at_ms; /* since the beginning */
    size_t drawn;  /* number of drawn faults before it */
    int n;
    struct chaos_part parts[CHAOS_ACTS_MAX];
};

#define CHAOS_FAULTS_MAX 1000000

struct chaos_sequence {
    size_t n, cap;
    struct chaos_fault *v; /* in the order of time */
};

/* The plan must outlive *ret, which chaos_sequence_free() frees. ERR_USAGE: no target has what a line needs, or
 * there are too many faults; name: the plan's, for errors. -ENOMEM. */
int chaos_sequence_draw(struct chaos_sequence *ret, const struct chaos_plan *p, uint64_t seed,
                        const struct chaos_targets *t, const char *name, struct err *e);
void chaos_sequence_free(struct chaos_sequence *s);

/* "stop guardian node 1 for 2.310 s and kill agent node 1"; returns out. */
#define CHAOS_TEXT_MAX 512
char *chaos_fault_text(const struct chaos_fault *f, char out[CHAOS_TEXT_MAX]);
char *chaos_part_text(const struct chaos_part *part, char *out, size_t cap);

#endif
