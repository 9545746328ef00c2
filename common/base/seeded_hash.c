/* The seeded hash, which multiplies eight bytes at a time into each other. See seeded_hash.h. */
#include "common/base/seeded_hash.h"
#include <stdint.h>
#include <string.h>
#include <sys/random.h>

__extension__ typedef unsigned __int128 u128;

static uint64_t seed;

/* Runs before main(), so that no table is made before the seed. */
__attribute__((constructor)) static void draw_seed(void)
{
    if (getrandom(&seed, sizeof seed, GRND_NONBLOCK) != (ssize_t)sizeof seed)
        seed = (uintptr_t)&draw_seed;
}

static uint64_t fold(uint64_t a, uint64_t b)
{
    u128 r = (u128)a * b;
    return (uint64_t)r ^ (uint64_t)(r >> 64);
}

static uint64_t word(const char *p, size_t n)
{
    uint64_t w = 0;
    memcpy(&w, p, n);
    return w;
}

unsigned seeded_hash(const void *key, size_t n)
{
    const char *p = key;
    uint64_t h = seed ^ n;
    for (; n > 8; p += 8, n -= 8)
        h = fold(h ^ word(p, 8), 0x9e3779b97f4a7c15u);
    h = fold(h ^ word(p, n), 0xd6e8feb86659fd93u);
    return (unsigned)(h ^ h >> 32);
}
