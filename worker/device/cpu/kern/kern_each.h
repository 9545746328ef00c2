/* A family of kernels, the file FAMILY, once for each storage type and width: kern_body.h says what it is given. */
#define T_BF16 0
#define ROUND 0
#define T float
#define L 16
#define NAME(x) x##_f32_16
#include "worker/device/cpu/kern/kern_body.h"
#undef L
#undef NAME
#define L 8
#define NAME(x) x##_f32_8
#include "worker/device/cpu/kern/kern_body.h"
#undef L
#undef NAME
#undef ROUND
#define ROUND 1
#define L 16
#define NAME(x) x##_rounded_16
#include "worker/device/cpu/kern/kern_body.h"
#undef L
#undef NAME
#define L 8
#define NAME(x) x##_rounded_8
#include "worker/device/cpu/kern/kern_body.h"
#undef L
#undef NAME
#undef ROUND
#define ROUND 2
#define L 16
#define NAME(x) x##_half_16
#include "worker/device/cpu/kern/kern_body.h"
#undef L
#undef NAME
#define L 8
#define NAME(x) x##_half_8
#include "worker/device/cpu/kern/kern_body.h"
#undef L
#undef NAME
#undef ROUND
#undef T
#undef T_BF16
#define T_BF16 1
#define ROUND 0
#define T uint16_t
#define L 16
#define NAME(x) x##_bf16_16
#include "worker/device/cpu/kern/kern_body.h"
#undef L
#undef NAME
#define L 8
#define NAME(x) x##_bf16_8
#include "worker/device/cpu/kern/kern_body.h"
#undef L
#undef NAME
#undef T
#undef T_BF16
#undef ROUND
