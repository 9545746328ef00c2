/* A matrix product in tiles: each tile of c belongs to one task, which copies the blocks of a and b that it needs into
 * two small contiguous buffers and multiplies them 4 x 8. The sum over k runs in one order whatever the number of
 * threads. The same code is compiled for AVX2 too; without contraction to multiply-add (meson.build) that gives the
 * same bits. */
#include <string.h>

#include "common/base/numbers.h"
#include "worker/device/ref/ref.h"

enum { MR = 4, NR = 8, TILE_M = 64, TILE_N = 128, TILE_K = 128 };

typedef double quad __attribute__((vector_size(32)));

#define INLINE static inline __attribute__((always_inline)) /* into a function compiled for another instruction set */

/* Copy `rows` x depth elements into strips of `strip` rows each, k outermost within a strip, the last one filled with
 * zeros. */
static void pack(double *to, const double *from, size_t row, size_t col, size_t rows, size_t depth, size_t strip)
{
    for (size_t i0 = 0; i0 < rows; i0 += strip) {
        size_t n = min_size(strip, rows - i0);
        for (size_t k = 0; k < depth; k++, to += strip)
            for (size_t i = 0; i < strip; i++)
                to[i] = i < n ? from[(i0 + i) * row + k * col] : 0;
    }
}

/* sum[i][j] = the product of one strip of a and one strip of b. */
INLINE void multiply_strips(const double *a, const double *b, size_t depth, double sum[MR][NR])
{
    quad s[MR][2] = {0};
    for (size_t k = 0; k < depth; k++, a += MR, b += NR) {
        quad left, right;
        memcpy(&left, b, sizeof left);
        memcpy(&right, b + 4, sizeof right);
        for (int i = 0; i < MR; i++) {
            s[i][0] += a[i] * left;
            s[i][1] += a[i] * right;
        }
    }
    memcpy(sum, s, sizeof s);
}

INLINE void multiply_blocks(const double *a, const double *b, size_t m, size_t n, size_t depth, double *c, size_t ldc)
{
    for (size_t j0 = 0; j0 < n; j0 += NR)
        for (size_t i0 = 0; i0 < m; i0 += MR) {
            double sum[MR][NR];
            multiply_strips(a + i0 * depth, b + j0 * depth, depth, sum);
            size_t rows = min_size(MR, m - i0), cols = min_size(NR, n - j0);
            for (size_t i = 0; i < rows; i++)
                for (size_t j = 0; j < cols; j++)
                    c[(i0 + i) * ldc + j0 + j] += sum[i][j];
        }
}

typedef void multiply(const double *a, const double *b, size_t m, size_t n, size_t depth, double *c, size_t ldc);

static void multiply_plain(const double *a, const double *b, size_t m, size_t n, size_t depth, double *c, size_t ldc)
{
    multiply_blocks(a, b, m, n, depth, c, ldc);
}

#ifdef __x86_64__
__attribute__((target("avx2"))) static void multiply_avx2(const double *a, const double *b, size_t m, size_t n,
                                                          size_t depth, double *c, size_t ldc)
{
    multiply_blocks(a, b, m, n, depth, c, ldc);
}
#endif

static multiply *fastest(void)
{
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx2"))
        return multiply_avx2;
#endif
    return multiply_plain;
}

static void tile(multiply *blocks, size_t m, size_t n, size_t depth, struct matrix a, struct matrix b, double *c,
                 size_t ldc, bool add)
{
    double packed_a[TILE_M * TILE_K], packed_b[TILE_N * TILE_K];
    for (size_t i = 0; i < m && !add; i++)
        memset(c + i * ldc, 0, n * sizeof *c);
    for (size_t k0 = 0; k0 < depth; k0 += TILE_K) {
        size_t some = min_size(TILE_K, depth - k0);
        pack(packed_a, a.at + k0 * a.col, a.row, a.col, m, some, MR);
        pack(packed_b, b.at + k0 * b.row, b.col, b.row, n, some, NR);
        blocks(packed_a, packed_b, m, n, some, c, ldc);
    }
}

void ref_gemm(int threads, size_t m, size_t n, size_t depth, struct matrix a, struct matrix b, double *c, size_t ldc,
              bool add)
{
    size_t down = (m + TILE_M - 1) / TILE_M, across = (n + TILE_N - 1) / TILE_N;
    multiply *blocks = fastest();
    PARALLEL_FOR
    for (size_t t = 0; t < down * across; t++) {
        size_t i = t / across * TILE_M, j = t % across * TILE_N;
        struct matrix rows = {a.at + i * a.row, a.row, a.col}, cols = {b.at + j * b.col, b.row, b.col};
        tile(blocks, min_size(TILE_M, m - i), min_size(TILE_N, n - j), depth, rows, cols, c + i * ldc + j, ldc, add);
    }
}
