/* A walk that waits after each step and looks at what it wrote (--cuda-check, CRUN_CUDA_CHECK=1): slow, and the first
 * step that fails, or whose result is no number, is named. And names of steps, for whoever has to speak of one. */
#ifndef CRUN_WORKER_DEVICE_CUDA_CHECK_H
#define CRUN_WORKER_DEVICE_CUDA_CHECK_H

#include <stddef.h>

struct cuda_plan;
struct err;
struct run_hooks;
struct step;
struct variant_key;

/* "step 12 of 290, conv+stats of layer1.0.conv1, conv+stats n256 ... by eng34{...}" */
const char *check_name(const struct cuda_plan *pl, const struct step *s, char *out, size_t cap);

/* An error names the step. The first result of a walk that is no number is a warning: where halves overflow, the loss
 * scale has yet to see it. */
int check_walk(struct cuda_plan *pl, const struct variant_key *v, const struct run_hooks *h, struct err *e);

#endif
