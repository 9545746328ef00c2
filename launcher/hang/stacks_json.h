/* What the main threads of workers do, as JSON: the answer to "stacks" (reference/rendezvous-protocol.md). */
#ifndef CRUN_LAUNCHER_STACKS_JSON_H
#define CRUN_LAUNCHER_STACKS_JSON_H

#include <stddef.h>

struct buf;
struct gather;

/* Of stacks that were gathered; of those that are not done it says so. At most `max` bytes: ranks that have no room are
 * counted. -ENOMEM. */
int stacks_json(struct gather *g, size_t max, struct buf *out);

#endif
