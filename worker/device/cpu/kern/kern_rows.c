/* Norms of the channels of positions, chains of elementwise operations, sums over rows. */
#include "worker/device/cpu/kern/kern_set.h"

static const int32_t lane_number[LANES_MAX] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

enum { STRIP = 512 }; /* values that a chain has in floats at a time */

/* Counters of Philox, one in the lower half of each lane; the upper halves may hold anything. */
#if defined __AVX512F__
enum { WORDS = 8 };
#define LOWER_PRODUCT(a, m) (words) _mm512_mul_epu32((__m512i)(a), _mm512_set1_epi64(m))
#elif defined __AVX2__
enum { WORDS = 4 };
#define LOWER_PRODUCT(a, m) (words) _mm256_mul_epu32((__m256i)(a), _mm256_set1_epi64x(m))
#else
enum { WORDS = 2 };
#define LOWER_PRODUCT(a, m) ((a)&0xffffffffu) * (uint64_t)(m)
#endif
typedef uint64_t words __attribute__((vector_size(8 * WORDS)));
typedef uint32_t halves __attribute__((vector_size(4 * WORDS)));

/* Ten rounds, on the counters (block, block / 2^32, sample, 0) of WORDS blocks from `block` on. */
static INLINE void philox(struct drop_key key, uint32_t sample, uint64_t block, uint32_t out[DROP_RUN])
{
    words a = {0}, b, c = a + sample, d = a, k0 = a + key.v[0], k1 = a + key.v[1];
    for (int i = 0; i < WORDS; i++)
        a[i] = block + (uint64_t)i;
    b = a >> 32;
    for (int round = 0; round < 10; round++) {
        const words p = LOWER_PRODUCT(a, 0xD2511F53u), q = LOWER_PRODUCT(c, 0xCD9E8D57u);
        a = (q >> 32) ^ b ^ k0;
        b = q;
        c = (p >> 32) ^ d ^ k1;
        d = p;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    const words r[4] = {a, b, c, d};
    for (int i = 0; i < 4; i++) {
        const halves h = __builtin_convertvector(r[i], halves);
        memcpy(out + i * DROP_LANES, &h, sizeof h);
    }
}

/* The words of DROP_RUN elements from element `run` * DROP_RUN of a sample on (drop.h). */
static void drop_words(struct drop_key key, uint32_t sample, uint64_t run, uint32_t out[DROP_RUN])
{
    for (int i = 0; i < DROP_LANES; i += WORDS)
        philox(key, sample, run * DROP_LANES + (uint64_t)i, out + i);
}

/* Those of n <= STRIP elements of a sample from `first` on, and of as many more as a vector may have. */
static const uint32_t *drop_words_of(const struct link *k, uint32_t sample, uint64_t first, int n,
                                     uint32_t room[STRIP + 3 * DROP_RUN])
{
    const uint64_t run = first / DROP_RUN;
    for (uint64_t i = run; i * DROP_RUN < first + (uint64_t)(n + LANES_MAX); i++)
        drop_words(k->key, sample, i, room + (i - run) * DROP_RUN);
    return room + first % DROP_RUN;
}

#define FAMILY "worker/device/cpu/kern/kern_rows.h"
#include "worker/device/cpu/kern/kern_each.h"

void KERN_OF_SET(norm)(const struct norm_job *j, enum store t, int threads)
{
    DISPATCH(norm, ANY_WIDTH, j, threads);
}

void KERN_OF_SET(norm_bwd)(const struct norm_bwd_job *j, enum store t, int threads)
{
    DISPATCH(norm_bwd, ANY_WIDTH, j, threads);
}

void KERN_OF_SET(chain)(const struct chain_job *j, enum store t, int threads)
{
    DISPATCH(chain, ANY_WIDTH, j, threads);
}

void KERN_OF_SET(softmax)(const struct softmax_job *j, enum store t)
{
    DISPATCH(softmax, ANY_WIDTH, j);
}

void KERN_OF_SET(softmax_bwd)(const struct softmax_job *j, enum store t)
{
    DISPATCH(softmax_bwd, ANY_WIDTH, j);
}

void KERN_OF_SET(give_rows)(const float *from, void *to, size_t rows, int n, size_t stride, enum store t)
{
    DISPATCH(give_rows, ANY_WIDTH, from, to, rows, n, stride);
}

void KERN_OF_SET(columns)(const struct columns_job *j, enum store t, int threads)
{
    DISPATCH(columns, ANY_WIDTH, j, threads);
}
