/* The networks of test_exact.c, over images of 16 x 16, 37 classes, less than 20,000 parameters: two residual blocks;
 * or one of ConvNeXt's kind and one of a transformer, with all that is dropped. Or over 8 tokens of 37: a block of
 * GPT-2 and one of a Llama. */
#ifndef CRUN_TESTS_EXACT_NET_H
#define CRUN_TESTS_EXACT_NET_H

#include <stdbool.h>
#include <stddef.h>

#include "worker/program/split.h"

struct err;

/* Blocks are split, too. factors: program_freeze(). */
int exact_positions(struct program **ret, const struct split *s, const char *factors, struct err *e);
int exact_text(struct program **ret, const struct split *s, bool tied, const char *factors, struct err *e);
int exact_net(struct program **ret, const struct split *s, struct err *e);
int exact_frozen(struct program **ret, const struct split *s, const char *factors, struct err *e);
/* Any of them, with parameters padded to a multiple of so many elements (program_align()), 0: as it is without. */
enum exact_kind { EXACT_RESIDUAL, EXACT_POSITIONS, EXACT_TEXT, EXACT_TIED };
int exact_aligned(struct program **ret, enum exact_kind kind, const struct split *s, size_t elements, struct err *e);

#endif
