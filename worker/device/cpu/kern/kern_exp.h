/* e^x for loops of vectors: 0 below `lowest`; of NaN, NaN. e^r on [-ln 2 / 2, ln 2 / 2] by a polynomial, times a
 * power of two that is put together from its bits. */
#ifndef CRUN_WORKER_KERN_EXP_H
#define CRUN_WORKER_KERN_EXP_H

#include <stdint.h>
#include <string.h>

/* x up to 88, to two units in the last place (S. L. Moshier, Cephes, expf.c). */
static inline float exp_of_float(float x)
{
    const float lowest = -87.33654f, magic = 12582912.0f; /* 1.5 * 2^23: its last bit is a unit */
    const float c = x < lowest ? lowest : x, shifted = c * 1.44269504f + magic, n = shifted - magic;
    const float r = c - n * 0.693359375f + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f, scale;
    uint32_t bits;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1;
    memcpy(&bits, &shifted, sizeof bits);
    bits = (bits + 127u) << 23; /* the bits of magic above are shifted out */
    memcpy(&scale, &bits, sizeof scale);
    return x < lowest ? 0 : p * scale;
}

/* x up to 700, to a part in 3e9: what is rounded to float afterwards. Taylor's series up to r^8 / 8!. */
static inline double exp_of_double(double x)
{
    const double lowest = -708, magic = 0x1.8p52;
    const double c = x < lowest ? lowest : x, shifted = c * 1.4426950408889634 + magic, n = shifted - magic;
    const double r = c - n * 0.6931471805599453;
    double p = 1.0 / 40320, scale;
    uint64_t bits;
    p = p * r + 1.0 / 5040;
    p = p * r + 1.0 / 720;
    p = p * r + 1.0 / 120;
    p = p * r + 1.0 / 24;
    p = p * r + 1.0 / 6;
    p = p * r + 0.5;
    p = p * r * r + r + 1;
    memcpy(&bits, &shifted, sizeof bits);
    bits = (bits + 1023u) << 52;
    memcpy(&scale, &bits, sizeof scale);
    return x < lowest ? 0 : p * scale;
}

#endif
