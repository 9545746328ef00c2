/* Reads ten steps of a worker from its page, and converts those of a node's workers to text for group rank 0: numbers
 * separated by spaces,
 *
 *   STEP BASE COUNT, then for each worker BEST WORST (links) and ten times DATA COMPUTE WAIT, in microseconds */
#ifndef CRUN_LAUNCHER_STRAGGLER_STEPS_H
#define CRUN_LAUNCHER_STRAGGLER_STEPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "launcher/straggler/straggler.h"

struct buf;
struct crun_page;

/* Read the ten steps up to `last`. false: the page does not have them all. */
bool straggler_steps_read(struct crun_page *p, uint64_t last, struct straggler_rank *ret);

/* 0; -ENOMEM. */
int straggler_steps_write(struct buf *out, uint64_t last, int base, const struct straggler_rank *v, int n);

/* Parse into v[world]. false: not such a text, or about ranks that do not exist; v may have changed. */
bool straggler_steps_parse(const char *text, size_t n, struct straggler_rank *v, int world, uint64_t *ret_last);

#endif
