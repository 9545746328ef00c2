/* Activation functions of OP_ACT, with their words in texts of models. */
#ifndef CRUN_WORKER_ACT_H
#define CRUN_WORKER_ACT_H

#include "common/base/choice.h"

/* What OP_ACT makes of x. */
#define OP_ACTS(X)                                                                                                     \
    X(ACT_GELU, "gelu")           /* x * P(N(0,1) < x) */                                                              \
    X(ACT_GELU_TANH, "gelu_tanh") /* x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3))) */                        \
    X(ACT_SILU, "silu")           /* x / (1 + e^-x) */
enum op_act { OP_ACTS(CHOICE_ID) };

#define OP_ACT_ONE(id, word) +1
enum { OP_ACTS_N = 0 OP_ACTS(OP_ACT_ONE) };

#endif
