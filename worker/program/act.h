/* Activation functions of OP_ACT. */
#ifndef CRUN_WORKER_ACT_H
#define CRUN_WORKER_ACT_H

#include "common/base/choice.h"

/* What OP_ACT makes of x. */
#define OP_ACTS(X)                                                                                                     \
    X(ACT_GELU, "gelu")           /* x * P(N(0,1) < x) */                                                              \
    X(ACT_GELU_TANH, "gelu-tanh") /* x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3))) */                        \
    X(ACT_SILU, "silu")           /* x / (1 + e^-x) */
enum op_act { OP_ACTS(CHOICE_ID) };

#endif
