/* Random numbers: bits that nobody can predict, and a sequence that a seed reproduces. */
#ifndef CRUN_COMMON_DICE_H
#define CRUN_COMMON_DICE_H

#include <stdint.h>

uint64_t dice_seed(void);            /* from the kernel; from the clock early in a machine's boot */
uint64_t dice_roll(uint64_t *state); /* splitmix64: 64 bits, the next of the sequence */

#endif
