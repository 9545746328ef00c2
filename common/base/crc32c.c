/* CRC32C (Castagnoli polynomial, reflected 0x82f63b78): the instruction of SSE4.2 or ARMv8 where the CPU has it, else
 * eight tables of 256 entries ("slicing by 8"). The choice is made once, at the first call; all give the same values.
 */
#include "common/base/crc32c.h"

#include <pthread.h>
#include <stdbool.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <nmmintrin.h>
#define HAVE_INSTRUCTION 1
#define INSTRUCTION_TARGET "sse4.2,crc32"
#define CRC_OF_8 _mm_crc32_u64
#define CRC_OF_1 _mm_crc32_u8
#elif defined(__aarch64__)
#include <arm_acle.h>
#include <asm/hwcap.h>
#include <sys/auxv.h>
#define HAVE_INSTRUCTION 1
#define INSTRUCTION_TARGET "+crc"
#define CRC_OF_8 __crc32cd
#define CRC_OF_1 __crc32cb
#endif

#define POLYNOMIAL 0x82f63b78u

static uint32_t table[8][256];
#ifdef HAVE_INSTRUCTION
static bool have_instruction;
#endif
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void prepare(void)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t c = i;
        for (int bit = 0; bit < 8; bit++)
            c = (c >> 1) ^ (POLYNOMIAL & (0u - (c & 1u)));
        table[0][i] = c;
    }
    for (int k = 1; k < 8; k++)
        for (int i = 0; i < 256; i++)
            table[k][i] = (table[k - 1][i] >> 8) ^ table[0][table[k - 1][i] & 0xff];
#if defined(__x86_64__)
    /* Not __builtin_cpu_supports(): it would run a dozen CPUID instructions at the start of every program, each a
     * trap in a virtual machine. */
    unsigned a, b, c, d;
    have_instruction = __get_cpuid(1, &a, &b, &c, &d) && (c & bit_SSE4_2);
#elif defined(__aarch64__)
    have_instruction = getauxval(AT_HWCAP) & HWCAP_CRC32;
#endif
}

/* c is inverted, here and in with_instruction(). */
static uint32_t with_tables(uint32_t c, const unsigned char *p, size_t n)
{
    for (; n >= 8; n -= 8, p += 8) {
        c ^= (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
        c = table[7][c & 0xff] ^ table[6][c >> 8 & 0xff] ^ table[5][c >> 16 & 0xff] ^ table[4][c >> 24] ^
            table[3][p[4]] ^ table[2][p[5]] ^ table[1][p[6]] ^ table[0][p[7]];
    }
    for (; n > 0; n--)
        c = (c >> 8) ^ table[0][(c ^ *p++) & 0xff];
    return c;
}

#ifdef HAVE_INSTRUCTION
__attribute__((target(INSTRUCTION_TARGET))) static uint32_t with_instruction(uint32_t c, const unsigned char *p,
                                                                             size_t n)
{
    uint64_t wide = c;
    for (; n >= 8; n -= 8, p += 8) {
        uint64_t v;
        memcpy(&v, p, 8);
        wide = CRC_OF_8(wide, v);
    }
    c = (uint32_t)wide;
    for (; n > 0; n--)
        c = CRC_OF_1(c, *p++);
    return c;
}
#endif

uint32_t crc32c(uint32_t crc, const void *data, size_t n)
{
    pthread_once(&once, prepare);
#ifdef HAVE_INSTRUCTION
    if (have_instruction)
        return ~with_instruction(~crc, data, n);
#endif
    return ~with_tables(~crc, data, n);
}

uint32_t crc32c_portable(uint32_t crc, const void *data, size_t n)
{
    pthread_once(&once, prepare);
    return ~with_tables(~crc, data, n);
}
