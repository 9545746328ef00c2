/* Chooses the table of kernels for the instruction set of this processor. */
#include "worker/device/cpu/kern/kern.h"

extern const struct kern kern_baseline;
#ifdef KERN_X86
extern const struct kern kern_avx2, kern_avx512, kern_avx512_bf16;

static bool have_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

static bool have_avx512(void)
{
    return have_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

static bool have_avx512_bf16(void)
{
    return have_avx512() && __builtin_cpu_supports("avx512bf16");
}
#endif

const struct kern *kern_select(int lanes, bool bf16)
{
#ifdef KERN_X86
    if (lanes >= 16 && bf16 && have_avx512_bf16())
        return &kern_avx512_bf16;
    if (lanes >= 16 && have_avx512())
        return &kern_avx512;
    if (have_avx2())
        return &kern_avx2;
#endif
    return &kern_baseline;
}

const struct kern *const *kern_all(void)
{
    static const struct kern *all[5];
    int n = 0;
#ifdef KERN_X86
    if (have_avx512_bf16())
        all[n++] = &kern_avx512_bf16;
    if (have_avx512())
        all[n++] = &kern_avx512;
    if (have_avx2())
        all[n++] = &kern_avx2;
#endif
    all[n++] = &kern_baseline;
    all[n] = NULL;
    return all;
}
