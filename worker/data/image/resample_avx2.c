/* The bilinear filter in AVX2: sums of products of two taps at a time (VPMADDWD), with 22-bit weights as 15 low bits
 * and the rest. All sums are exact modulo 2^32, so the bits are those of resample.c. Compiled with -mavx2. */
#include <immintrin.h>
#include <string.h>

#include "worker/data/image/resample.h"

#define UNROLL _Pragma("GCC unroll 4")
#define ROWS 4 /* that go through the row pass together: they share the weights */

/* sums of low and high parts to rounded pixels, 8 x i32 */
static inline __m256i rounded(__m256i sum)
{
    const __m256i half = _mm256_set1_epi32(1 << (RESAMPLE_PRECISION - 1));
    return _mm256_srai_epi32(_mm256_add_epi32(sum, half), RESAMPLE_PRECISION);
}

static inline __m256i joined(__m256i low, __m256i high)
{
    return _mm256_add_epi32(low, _mm256_slli_epi32(high, 15));
}

/* Four taps of an output pixel from 16 bytes at p: the halves of a register hold taps 0, 1 and 2, 3, each as the pairs
 * r r, g g, b b. */
static inline __m256i pairs_of_taps(const uint8_t *p)
{
    const __m256i order = _mm256_setr_epi8(0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1, 6, -1, 9, -1, 7,
                                           -1, 10, -1, 8, -1, 11, -1, -1, -1, -1, -1);
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)p)), order);
}

/* Four weights: the first two in each of the low half's places, the others in the high half's. */
static inline __m256i pairs_of_weights(const int16_t *w)
{
    const __m256i order = _mm256_setr_epi8(0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6, 7, 4, 5, 6, 7, 4, 5,
                                           6, 7, 4, 5, 6, 7);
    int64_t four;
    memcpy(&four, w, sizeof four);
    return _mm256_shuffle_epi8(_mm256_set1_epi64x(four), order);
}

/* The halves of a and of b added up, side by side. */
static inline __m256i add_halves(__m256i a, __m256i b)
{
    return _mm256_add_epi32(_mm256_permute2x128_si256(a, b, 0x20), _mm256_permute2x128_si256(a, b, 0x31));
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

/* Output pixel i of four rows, `stride` apart, whose first tap p is. out: `bytes` apart. */
static inline void pixel_of_rows(const struct axis *a, int i, const uint8_t *p, size_t stride, uint8_t *out,
                                 size_t bytes, enum side side)
{
    const int16_t *low = a->low + (size_t)i * (size_t)a->taps, *high = a->high + (size_t)i * (size_t)a->taps;
    const __m256i wl0 = pairs_of_weights(low), wh0 = pairs_of_weights(high);
    __m256i l[ROWS], h[ROWS];
    UNROLL for (int y = 0; y < ROWS; y++)
    {
        const __m256i v = pairs_of_taps(p + (size_t)y * stride);
        l[y] = _mm256_madd_epi16(v, wl0);
        h[y] = _mm256_madd_epi16(v, wh0);
    }
    for (int k = 4; k < a->count[i]; k += 4) {
        const __m256i wl = pairs_of_weights(low + k), wh = pairs_of_weights(high + k);
        p += 12;
        UNROLL for (int y = 0; y < ROWS; y++)
        {
            const __m256i v = pairs_of_taps(p + (size_t)y * stride);
            l[y] = _mm256_add_epi32(l[y], _mm256_madd_epi16(v, wl));
            h[y] = _mm256_add_epi32(h[y], _mm256_madd_epi16(v, wh));
        }
    }
    const __m256i even = rounded(add_halves(joined(l[0], h[0]), joined(l[2], h[2])));
    const __m256i odd = rounded(add_halves(joined(l[1], h[1]), joined(l[3], h[3])));
    const __m256i words = _mm256_packus_epi32(even, odd), rgb = _mm256_packus_epi16(words, words);
    const uint64_t first = (uint64_t)_mm256_extract_epi64(rgb, 0), last = (uint64_t)_mm256_extract_epi64(rgb, 2);
    put_rgb(out, (uint32_t)first, side);
    put_rgb(out + bytes, (uint32_t)(first >> 32), side);
    put_rgb(out + 2 * bytes, (uint32_t)last, side);
    put_rgb(out + 3 * bytes, (uint32_t)(last >> 32), side);
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
            pixel_of_rows(a, i, p, stride, out, bytes, SIDE_NONE);
        else
            for (int k = 0; k < ROWS; k++)
                resample_pixel_rgb(a, i, src + (size_t)k * stride, out + (size_t)k * bytes);
    }
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
        if (flip)
            for (int i = 0; i < last; i++)
                pixel_of_rows(a, i, src + (size_t)a->first[i] * 3, stride, dst + (size_t)(last - i) * 3, bytes,
                              SIDE_BEFORE);
        else
            for (int i = 0; i < last; i++)
                pixel_of_rows(a, i, src + (size_t)a->first[i] * 3, stride, dst + (size_t)i * 3, bytes, SIDE_BEHIND);
        pixel_of_rows(a, last, src + (size_t)a->first[last] * 3, stride, dst + (size_t)(flip ? 0 : last) * 3, bytes,
                      SIDE_NONE);
    }
    resample_plain.rows_rgb(a, src, stride, n - y, end, dst, flip);
}

/* 16 bytes of one output row. */
static inline void column_block(const struct axis *a, int i, const uint8_t *top, size_t bytes, uint8_t *out)
{
    const int16_t *low = a->low + (size_t)i * (size_t)a->taps, *high = a->high + (size_t)i * (size_t)a->taps;
    __m256i low0 = _mm256_setzero_si256(), low1 = low0, high0 = low0, high1 = low0;
    for (int k = 0; k < a->count[i]; k += 2) {
        const uint8_t *p = top + (size_t)k * bytes, *q = k + 1 < a->count[i] ? p + bytes : p; /* its weight is 0 */
        const __m128i u = _mm_loadu_si128((const __m128i *)(const void *)p);
        const __m128i v = _mm_loadu_si128((const __m128i *)(const void *)q);
        const __m256i v0 = _mm256_cvtepu8_epi16(_mm_unpacklo_epi8(u, v));
        const __m256i v1 = _mm256_cvtepu8_epi16(_mm_unpackhi_epi8(u, v));
        int32_t l, h;
        memcpy(&l, low + k, sizeof l);
        memcpy(&h, high + k, sizeof h);
        const __m256i wl = _mm256_set1_epi32(l), wh = _mm256_set1_epi32(h);
        low0 = _mm256_add_epi32(low0, _mm256_madd_epi16(v0, wl));
        low1 = _mm256_add_epi32(low1, _mm256_madd_epi16(v1, wl));
        high0 = _mm256_add_epi32(high0, _mm256_madd_epi16(v0, wh));
        high1 = _mm256_add_epi32(high1, _mm256_madd_epi16(v1, wh));
    }
    __m256i words = _mm256_packus_epi32(rounded(joined(low0, high0)), rounded(joined(low1, high1)));
    words = _mm256_permute4x64_epi64(words, 0xd8);
    const __m128i v = _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128((__m128i *)(void *)out, v);
}

static void columns(const struct axis *a, const uint8_t *rows, size_t bytes, uint8_t *dst)
{
    if (bytes < 16) {
        resample_plain.columns(a, rows, bytes, dst);
        return;
    }
    for (int i = 0; i < a->n; i++, dst += bytes) {
        const uint8_t *top = rows + (size_t)a->first[i] * bytes;
        for (size_t x = 0; x < bytes; x += 16) {
            const size_t at = x + 16 <= bytes ? x : bytes - 16; /* the last block overlaps the one before */
            column_block(a, i, top + at, bytes, dst + at);
        }
    }
}

const struct resample_kernels resample_avx2 = {.rows_rgb = rows_rgb, .columns = columns};
