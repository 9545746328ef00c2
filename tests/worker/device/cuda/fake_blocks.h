/* Which memory is whose: blocks by address. Any thread may ask. */
#ifndef CRUN_TESTS_FAKE_BLOCKS_H
#define CRUN_TESTS_FAKE_BLOCKS_H

#include <stdbool.h>
#include <stddef.h>

struct fake_blocks;

struct fake_blocks *fake_blocks_open(void);
void fake_blocks_close(struct fake_blocks *s); /* the memory stays */

void fake_blocks_add(struct fake_blocks *s, void *at, size_t bytes);
/* The block that begins at p (NULL: any) is no longer one; its address, NULL if there is none. */
void *fake_blocks_remove(struct fake_blocks *s, const void *p, size_t *ret_bytes);
/* Is all of it in one block? */
bool fake_blocks_have(struct fake_blocks *s, const void *p, size_t bytes);

#endif
