/* Arenas of which pages come and go: address space, and memory where something was written and not given back. Host
 * memory. */
#ifndef CRUN_WORKER_PAGES_H
#define CRUN_WORKER_PAGES_H

#include <stddef.h>

struct err;

/* Zeros; freed with pages_close(). */
int pages_open(void **ret, size_t bytes, struct err *e);
void pages_close(void *arena, size_t bytes);

/* The pages that hold nothing but bytes [first, end) of the arena are gone; they are zero when they are next looked at.
 * Any thread. */
void pages_drop(void *arena, size_t first, size_t end);

#endif
