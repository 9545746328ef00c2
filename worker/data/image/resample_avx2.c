/* The bilinear and the bicubic filter in AVX2: sums of products of two taps at a time. A weight has 22 bits and a
 * sign: its low 16 go through VPMADDWD, the others, -10 to 80, through VPMADDUBSW (those of a pair are -20 to 84
 * together, so nothing saturates) into sums of 16 bits. These may wrap: they are shifted by 16. All is exact modulo
 * 2^32, so the bits are those of resample.c. Compiled with -mavx2. */
#include <immintrin.h>
#include <string.h>

#include "worker/data/image/resample.h"

#define UNROLL _Pragma("GCC unroll 4")
#define ROWS 4 /* that go through the row pass together: they share the weights */

/* Low parts plus half of a pixel's unit plus high parts, to pixels: 8 x i32. high: two bytes of zeros, then 16 bits. */
static inline __m256i rounded(__m256i low, __m256i high)
{
    const __m256i half = _mm256_set1_epi32(1 << (RESAMPLE_PRECISION - 1));
    return _mm256_srai_epi32(_mm256_add_epi32(_mm256_add_epi32(low, half), high), RESAMPLE_PRECISION);
}

/* Four taps of one output pixel in two rows, a row a lane: r r g g b b - - of taps 0 and 1, then of 2 and 3. */
static inline __m256i taps_of_rows(const uint8_t *row, const uint8_t *next)
{
    const __m256i order = _mm256_setr_epi8(0, 3, 1, 4, 2, 5, -1, -1, 6, 9, 7, 10, 8, 11, -1, -1, 0, 3, 1, 4, 2, 5, -1,
                                           -1, 6, 9, 7, 10, 8, 11, -1, -1);
    const __m128i a = _mm_loadu_si128((const __m128i *)(const void *)row);
    const __m128i b = _mm_loadu_si128((const __m128i *)(const void *)next);
    return _mm256_shuffle_epi8(_mm256_inserti128_si256(_mm256_castsi128_si256(a), b, 1), order);
}

static inline __m256i two_low(const int16_t *w)
{
    int32_t two;
    memcpy(&two, w, sizeof two);
    return _mm256_set1_epi32(two);
}

static inline __m256i two_high(const int8_t *w)
{
    int16_t two;
    memcpy(&two, w, sizeof two);
    return _mm256_set1_epi16(two);
}

/* Four weights in the places of taps_of_rows(). */
static inline __m256i four_high(const int8_t *w)
{
    const __m256i order = _mm256_setr_epi8(0, 1, 0, 1, 0, 1, 0, 1, 2, 3, 2, 3, 2, 3, 2, 3, 0, 1, 0, 1, 0, 1, 0, 1, 2, 3,
                                           2, 3, 2, 3, 2, 3);
    int32_t four;
    memcpy(&four, w, sizeof four);
    return _mm256_shuffle_epi8(_mm256_set1_epi32(four), order);
}

/* How a pixel is stored: by itself; or with a byte more on the side of the pixel that comes next, which writes over it:
 * behind it, or where the row is filled from right to left before it. */
enum side { SIDE_NONE, SIDE_BEHIND, SIDE_BEFORE };

static inline void put_rgb(uint8_t *out, uint32_t rgb, enum side side)
{
    const uint16_t two = (uint16_t)rgb;
    if (side == SIDE_BEHIND) {
        memcpy(out, &rgb, sizeof rgb);
    } else if (side == SIDE_BEFORE) {
        rgb <<= 8;
        memcpy(out - 1, &rgb, sizeof rgb);
    } else {
        memcpy(out, &two, sizeof two);
        out[2] = (uint8_t)(rgb >> 16);
    }
}

/* Output pixel i of four rows, `stride` apart, whose first tap p is. taps: a->count[i] or more, up to a->taps; with one
 * number for all pixels no branch depends on the pixel. out: `bytes` apart. */
static inline void pixel_of_rows(const struct axis *a, int i, int taps, const uint8_t *p, size_t stride, uint8_t *out,
                                 size_t bytes, enum side side)
{
    const int16_t *low = a->low + (size_t)i * (size_t)a->taps;
    const int8_t *high = a->high + (size_t)i * (size_t)a->taps;
    const __m256i zero = _mm256_setzero_si256();
    __m256i l[ROWS / 2] = {zero, zero}, h[ROWS / 2] = {zero, zero};
    for (int k = 0; k < taps; k += 4, p += 12) {
        const __m256i w01 = two_low(low + k), w23 = two_low(low + k + 2), wh = four_high(high + k);
        UNROLL for (int y = 0; y < ROWS / 2; y++)
        {
            const uint8_t *row = p + (size_t)(2 * y) * stride;
            const __m256i v = taps_of_rows(row, row + stride);
            const __m256i v01 = _mm256_unpacklo_epi8(v, zero), v23 = _mm256_unpackhi_epi8(v, zero);
            l[y] = _mm256_add_epi32(l[y], _mm256_add_epi32(_mm256_madd_epi16(v01, w01), _mm256_madd_epi16(v23, w23)));
            h[y] = _mm256_add_epi16(h[y], _mm256_maddubs_epi16(v, wh));
        }
    }
    UNROLL for (int y = 0; y < ROWS / 2; y++)
    {
        const __m256i both = _mm256_add_epi16(h[y], _mm256_srli_si256(h[y], 8)); /* taps 0 and 1, 2 and 3 */
        l[y] = rounded(l[y], _mm256_unpacklo_epi16(zero, both));
    }
    const __m256i words = _mm256_packus_epi32(l[0], l[1]), rgb = _mm256_packus_epi16(words, words);
    const uint64_t even = (uint64_t)_mm256_extract_epi64(rgb, 0), odd = (uint64_t)_mm256_extract_epi64(rgb, 2);
    put_rgb(out, (uint32_t)even, side);
    put_rgb(out + bytes, (uint32_t)odd, side);
    put_rgb(out + 2 * bytes, (uint32_t)(even >> 32), side);
    put_rgb(out + 3 * bytes, (uint32_t)(odd >> 32), side);
}

/* Four rows with some of the last loads beyond the end of the picture. */
static void last_rows(const struct axis *a, const uint8_t *src, size_t stride, const uint8_t *end, uint8_t *dst,
                      bool flip)
{
    const size_t bytes = (size_t)a->n * 3;
    for (int i = 0; i < a->n; i++) {
        const uint8_t *p = src + (size_t)a->first[i] * 3;
        uint8_t *out = dst + (size_t)(flip ? a->n - 1 - i : i) * 3;
        const size_t reach = (ROWS - 1) * stride + 12 * (size_t)((a->count[i] + 3) / 4) + 4;
        if ((size_t)(end - p) >= reach)
            pixel_of_rows(a, i, a->count[i], p, stride, out, bytes, SIDE_NONE);
        else
            for (int k = 0; k < ROWS; k++)
                resample_pixel_rgb(a, i, src + (size_t)k * stride, out + (size_t)k * bytes);
    }
}

static inline void four_rows(const struct axis *a, int taps, const uint8_t *src, size_t stride, uint8_t *dst, bool flip)
{
    const int last = a->n - 1;
    const size_t bytes = (size_t)a->n * 3;
    if (flip)
        for (int i = 0; i < last; i++)
            pixel_of_rows(a, i, taps, src + (size_t)a->first[i] * 3, stride, dst + (size_t)(last - i) * 3, bytes,
                          SIDE_BEFORE);
    else
        for (int i = 0; i < last; i++)
            pixel_of_rows(a, i, taps, src + (size_t)a->first[i] * 3, stride, dst + (size_t)i * 3, bytes, SIDE_BEHIND);
    pixel_of_rows(a, last, taps, src + (size_t)a->first[last] * 3, stride, dst + (size_t)(flip ? 0 : last) * 3, bytes,
                  SIDE_NONE);
}

static void rows_rgb(const struct axis *a, const uint8_t *src, size_t stride, int n, const uint8_t *end, uint8_t *dst,
                     bool flip)
{
    const int last = a->n - 1;
    const size_t bytes = (size_t)a->n * 3;
    const size_t reach = (ROWS - 1) * stride + (size_t)a->first[last] * 3 + 12 * (size_t)(a->taps / 4) + 4;
    int y = 0;
    for (; y + ROWS <= n; y += ROWS, src += ROWS * stride, dst += ROWS * bytes) {
        if ((size_t)(end - src) < reach) {
            last_rows(a, src, stride, end, dst, flip);
            continue;
        }
        if (a->most <= 4)
            four_rows(a, 4, src, stride, dst, flip);
        else if (a->most <= 8)
            four_rows(a, 8, src, stride, dst, flip);
        else
            four_rows(a, a->most, src, stride, dst, flip);
    }
    resample_plain.rows_rgb(a, src, stride, n - y, end, dst, flip);
}

#define BLOCK 32 /* bytes of an output row that are computed together */

static inline void column_block(const struct axis *a, int i, const uint8_t *top, size_t bytes, uint8_t *out)
{
    const int16_t *low = a->low + (size_t)i * (size_t)a->taps;
    const int8_t *high = a->high + (size_t)i * (size_t)a->taps;
    const __m256i zero = _mm256_setzero_si256();
    __m256i l[4] = {zero, zero, zero, zero}, h[2] = {zero, zero};
    for (int k = 0; k < a->count[i]; k += 2) {
        const uint8_t *p = top + (size_t)k * bytes, *q = k + 1 < a->count[i] ? p + bytes : p; /* its weight is 0 */
        const __m256i u = _mm256_loadu_si256((const __m256i *)(const void *)p);
        const __m256i v = _mm256_loadu_si256((const __m256i *)(const void *)q);
        const __m256i wl = two_low(low + k), wh = two_high(high + k);
        const __m256i pairs[2] = {_mm256_unpacklo_epi8(u, v), _mm256_unpackhi_epi8(u, v)};
        UNROLL for (int j = 0; j < 2; j++)
        {
            const __m256i lo = _mm256_unpacklo_epi8(pairs[j], zero), hi = _mm256_unpackhi_epi8(pairs[j], zero);
            l[2 * j] = _mm256_add_epi32(l[2 * j], _mm256_madd_epi16(lo, wl));
            l[2 * j + 1] = _mm256_add_epi32(l[2 * j + 1], _mm256_madd_epi16(hi, wl));
            h[j] = _mm256_add_epi16(h[j], _mm256_maddubs_epi16(pairs[j], wh));
        }
    }
    __m256i words[2];
    UNROLL for (int j = 0; j < 2; j++)
    {
        const __m256i lo = rounded(l[2 * j], _mm256_unpacklo_epi16(zero, h[j]));
        const __m256i hi = rounded(l[2 * j + 1], _mm256_unpackhi_epi16(zero, h[j]));
        words[j] = _mm256_packus_epi32(lo, hi);
    }
    _mm256_storeu_si256((__m256i *)(void *)out, _mm256_packus_epi16(words[0], words[1]));
}

static void columns(const struct axis *a, const uint8_t *rows, size_t bytes, uint8_t *dst)
{
    if (bytes < BLOCK) {
        resample_plain.columns(a, rows, bytes, dst);
        return;
    }
    for (int i = 0; i < a->n; i++, dst += bytes) {
        const uint8_t *top = rows + (size_t)a->first[i] * bytes;
        for (size_t x = 0; x < bytes; x += BLOCK) {
            const size_t at = x + BLOCK <= bytes ? x : bytes - BLOCK; /* the last block overlaps the one before */
            column_block(a, i, top + at, bytes, dst + at);
        }
    }
}

const struct resample_kernels resample_avx2 = {.rows_rgb = rows_rgb, .columns = columns};
