/* Ten steps of a worker, from its page; and of a node's workers as text, on their way to group rank 0: numbers with a
 * space between them,
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

/* Steps up to `last`. false: they are not all there. */
bool straggler_steps_read(struct crun_page *p, uint64_t last, struct straggler_rank *ret);

/* 0; -ENOMEM. */
int straggler_steps_write(struct buf *out, uint64_t last, int base, const struct straggler_rank *v, int n);

/* Into v[world]. false: the text is another's, or of ranks that there are not; v may have changed. */
bool straggler_steps_parse(const char *text, size_t n, struct straggler_rank *v, int world, uint64_t *ret_last);

#endif
