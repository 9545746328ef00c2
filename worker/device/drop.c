/* Draws the elements that OP_DROP keeps. */
#include "worker/device/drop.h"

#include <Random123/philox.h>

struct drop_key drop_key(uint64_t seed, uint64_t step, uint64_t layer)
{
    const philox4x32_key_t key = {{(uint32_t)seed, (uint32_t)(seed >> 32)}};
    const philox4x32_ctr_t at = {{(uint32_t)step, (uint32_t)(step >> 32), (uint32_t)layer, (uint32_t)(layer >> 32)}},
                           r = philox4x32_R(10, at, key);
    return (struct drop_key){{r.v[0], r.v[1]}};
}

uint32_t drop_word(struct drop_key k, uint32_t sample, uint64_t element)
{
    const uint64_t block = element / DROP_RUN * DROP_LANES + element % DROP_LANES;
    const philox4x32_key_t key = {{k.v[0], k.v[1]}};
    const philox4x32_ctr_t at = {{(uint32_t)block, (uint32_t)(block >> 32), sample, 0}};
    return philox4x32_R(10, at, key).v[element / DROP_LANES % 4];
}

uint32_t drop_bound(float rate)
{
    return (uint32_t)((double)rate * 0x1p32);
}
