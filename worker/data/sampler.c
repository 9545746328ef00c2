#include "worker/data/sampler.h"

#include "worker/data/rng.h"

void sampler_permutation(uint64_t seed, uint64_t epoch, int shuffle, size_t n, uint32_t *out)
{
    for (size_t i = 0; i < n; i++)
        out[i] = (uint32_t)i;
    if (!shuffle)
        return;
    struct rng r = rng_stream(seed, RNG_ORDER, epoch, 0);
    for (size_t i = n; i > 1; i--) {
        size_t j = (size_t)rng_below(&r, i);
        uint32_t swap = out[i - 1];
        out[i - 1] = out[j];
        out[j] = swap;
    }
}

int64_t sampler_steps(size_t n, size_t batch)
{
    return (int64_t)(n / batch + (n % batch != 0));
}

struct slice sampler_slice(size_t n, size_t batch, int64_t step, int rank, int world)
{
    size_t begin = (size_t)step * batch, m = n - begin < batch ? n - begin : batch;
    size_t first = m * (size_t)rank / (size_t)world, end = m * ((size_t)rank + 1) / (size_t)world;
    return (struct slice){.first = begin + first, .count = end - first};
}

size_t sampler_share(size_t batch, int world)
{
    return (batch + (size_t)world - 1) / (size_t)world;
}
