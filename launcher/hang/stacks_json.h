/* What the main threads of workers do, as JSON: the answer to "stacks" (reference/rendezvous-protocol.md). */
#ifndef CRUN_LAUNCHER_STACKS_JSON_H
#define CRUN_LAUNCHER_STACKS_JSON_H

#include <stddef.h>

struct buf;
struct gather;

/* Write the stacks that were gathered; those that are not ready are marked. At most `max` bytes; ranks that do not
 * fit are counted. -ENOMEM. */
int stacks_json(struct gather *g, size_t max, struct buf *out);

#endif
