/* Which numbers a run computes in: --opt-level and what goes with it, resolved. Pure. The levels are those of NVIDIA
 * Apex:
 *
 *   O0  fp32
 *   O1  fp32 weights; operands and results of convolutions and linear layers are halves, the rest between them fp32
 *   O2  a model of halves with its activations; fp32 batch norm and fp32 master weights
 *   O3  halves throughout, batch norm and weights included: an update rounds what it writes
 *
 * "Half" is fp16 or bf16; fp16's small range asks for loss scaling (loss_scale.h). Softmax and loss are fp32 on all
 * levels. Options -> precision_resolve() -> struct precision -> plans (types of values), step (scale of the loss),
 * optimizer (rounding). dtype.h has the types themselves, and their conversions. */
#ifndef CRUN_WORKER_PRECISION_H
#define CRUN_WORKER_PRECISION_H

#include <stdbool.h>
#include <stddef.h>

#include "worker/precision/dtype.h"
#include "worker/precision/loss_scale.h"

struct err;

enum opt_level { LEVEL_UNSET, LEVEL_O0, LEVEL_O1, LEVEL_O2, LEVEL_O3 };
enum amp { AMP_UNSET, AMP_OFF, AMP_AUTO, AMP_BF16, AMP_FP16 };
enum half_type { HALF_UNSET, HALF_FP16, HALF_BF16 };
enum yes_no { YES_NO_UNSET, YES_NO_NO, YES_NO_YES };

#define LOSS_SCALE_DYNAMIC (-1.0) /* precision_options.loss_scale */

struct precision_options { /* as typed; 0: not given */
    int level;             /* enum opt_level */
    int amp;               /* enum amp: O2 with this type, or O0 */
    int half;              /* enum half_type */
    int keep_bn;           /* enum yes_no */
    double loss_scale;     /* > 0, or LOSS_SCALE_DYNAMIC */
    bool amp_mode;         /* O1 */
};

struct precision {
    enum opt_level level; /* not LEVEL_UNSET */
    enum dtype half;      /* DT_F16 or DT_BF16; DT_F32 at O0 */
    bool half_bn;         /* batch norm's parameters and statistics are halves, too */
    bool half_weights;    /* no fp32 master weights */
    struct loss_scale scale;
    bool useless_scale; /* a scale was asked for where nothing underflows */
};

/* native_bf16: what --amp auto goes by. ERR_USAGE names the two options that contradict each other. */
int precision_resolve(const struct precision_options *o, bool native_bf16, struct precision *ret, struct err *e);

/* "fp32", "fp16 (O1)", ... */
const char *precision_text(const struct precision *p);

/* What dlogits are multiplied by. fp16: of the mean over the global batch, as in Apex and torch, where losses are
 * means; gradients here are sums over samples. */
double precision_grad_scale(const struct precision *p, const struct loss_scale *s, double global_batch);

/* args.h: arg_spec.parse and arg_spec.print of the fields above. */
int precision_parse_level(const char *text, void *field, struct err *e);
int precision_parse_amp(const char *text, void *field, struct err *e);
int precision_parse_half(const char *text, void *field, struct err *e);
int precision_parse_yes_no(const char *text, void *field, struct err *e);
int precision_parse_scale(const char *text, void *field, struct err *e);
void precision_print_level(const void *field, char *out, size_t cap);
void precision_print_amp(const void *field, char *out, size_t cap);
void precision_print_half(const void *field, char *out, size_t cap);
void precision_print_yes_no(const void *field, char *out, size_t cap);
void precision_print_scale(const void *field, char *out, size_t cap);

#endif
