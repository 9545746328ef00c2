/* Chance: bits that nobody foresees, and a sequence that its seed gives again. */
#ifndef CRUN_COMMON_DICE_H
#define CRUN_COMMON_DICE_H

#include <stdint.h>

uint64_t dice_seed(void);            /* of the kernel; of the clock early in the boot of a machine */
uint64_t dice_roll(uint64_t *state); /* splitmix64: 64 bits, the next of the sequence */

#endif
