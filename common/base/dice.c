/* Random numbers: seeds, and a sequence from a seed (dice.h). */
#include "common/base/dice.h"

#include <sys/random.h>

#include "common/base/clock.h"

uint64_t dice_seed(void)
{
    uint64_t v = 0;
    if (getrandom(&v, sizeof v, GRND_NONBLOCK) != sizeof v)
        v = (uint64_t)clock_ns() * UINT64_C(0x9e3779b97f4a7c15);
    return v;
}

uint64_t dice_roll(uint64_t *state)
{
    uint64_t z = (*state += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}
