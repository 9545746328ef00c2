/* Samples that count with weight 0, told once each, by name: one damaged picture more is news. Labels that are no class
 * are most often wrong in all of a data base at once: of these the first is told, and after pauses how many there
 * are. */
#ifndef CRUN_WORKER_LEFT_OUT_H
#define CRUN_WORKER_LEFT_OUT_H

#include <stddef.h>
#include <stdint.h>

struct dataset;
struct err;

struct left_out {
    unsigned char *told; /* a bit a sample */
    size_t labels;       /* samples whose label is no class */
    int most;            /* the largest of these labels */
    int64_t next_ms, pause_ms;
};

/* Of a set of n samples. -ENOMEM. */
int left_out_init(struct left_out *o, size_t n, struct err *e);
void left_out_finish(struct left_out *o);

/* A line in the log, perhaps. label: what the sample says it is; now_ms: clock_ms(). */
void left_out_tell(struct left_out *o, struct dataset *d, uint32_t id, int label, const struct err *why,
                   int64_t now_ms);

#endif
