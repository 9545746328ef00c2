/* Samples that count with weight 0. Each is told once, by name, up to some number of names; then, and of labels that
 * are no class from the second on, their number is told, after pauses that grow. A list of them is kept for a file
 * (worker/run/bad_samples.h). One thread. */
#ifndef CRUN_WORKER_LEFT_OUT_H
#define CRUN_WORKER_LEFT_OUT_H

#include <stddef.h>
#include <stdint.h>

struct dataset;
struct err;

#define LEFT_OUT_NAMES 20      /* told by name, over all ranks */
#define LEFT_OUT_LISTED 100000 /* of a rank, in all */

struct left_out_count {
    size_t n; /* so far */
    int64_t next_ms, pause_ms;
};

struct left_out_item {
    uint32_t id;
    char why[124];
};

struct left_out {
    unsigned char *told; /* a bit a sample */
    size_t names;        /* that damaged samples are told by */
    struct left_out_count damaged, labels;
    int most;                    /* the largest label that is no class */
    struct left_out_item *items; /* since left_out_forget() */
    size_t n_items, cap;
    size_t listed; /* items there have been */
};

/* Of a set of n samples that so many ranks share. -ENOMEM. */
int left_out_init(struct left_out *o, size_t n, int ranks, struct err *e);
void left_out_finish(struct left_out *o);

/* A line in the log, perhaps. label: what the sample says it is; now_ms: clock_ms(). */
void left_out_tell(struct left_out *o, struct dataset *d, uint32_t id, int label, const struct err *why,
                   int64_t now_ms);

/* Another rank has told this one. */
void left_out_know(struct left_out *o, uint32_t id);
void left_out_forget(struct left_out *o); /* the items; what was told stays told */

#endif
