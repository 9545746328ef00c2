/* Which values of a plan are halves (fp16 or bf16): one answer for all devices, from the program and plan_options
 * alone.
 *
 *   HALF_STORED     every activation and every gradient of one is stored as a half. The logits stay wide: the loss is
 *                   computed from them
 *   HALF_OPERANDS   what convolutions and linear layers write; what they read is cast on the way in. Batch norm, ReLU,
 *                   sums and pooling read and write wide values (a gradient has the type of its tensor)
 *   both            convolutions and linear layers use copies of their weights that are rounded; in fp16 their
 *                   gradients are rounded, too, before they are added up (bf16: kept wide). Batch statistics are wide;
 *                   biases are
 *   GPUs            round the bias of a linear layer of each position, too, where the product adds it
 *   norms, scales   of positions read and write values as others do; their parameters and the gradients of these are
 *                   wide
 *   tables  of tokens are read as they are; the head over a vocabulary is a product like the others, whose logits are
 *           wide and whose gradient of the weight is never rounded
 *   half_bn         scale and shift of batch norm are rounded before use, and their gradients
 *
 * Where a group of ranks shares a layer values are halves as if each rank had all of it: what is gathered is what it
 * was, terms of a sum over ranks stay wide until the sum is whole, and in fp16 gradients of weights are rounded for
 * each rank's samples by themselves. What the loss takes over the group is wide. */
#ifndef CRUN_WORKER_DEVICE_HALF_H
#define CRUN_WORKER_DEVICE_HALF_H

#include <stdbool.h>

#include "worker/device/device.h"
#include "worker/program/program.h"

bool half_compute(const struct plan_options *o); /* any at all */
bool half_tensor(const struct program *p, const struct plan_options *o, int tensor);
bool half_weight(const struct program *p, const struct plan_options *o, int param);

/* What op asks of its group: `times` calls over so many bytes, those of all ranks together. What is gathered is as it
 * is stored; sums are wide, `real` bytes a value. A head calls for each HEAD_ROWS rows; a GPU, which takes more of them
 * at once, less often. */
struct half_call {
    enum op_call call;
    int times;
    double bytes;
};
enum { HALF_CALLS_MOST = 2 };
int half_calls(const struct program *p, const struct plan_options *o, const struct op *op, double real,
               struct half_call ret[HALF_CALLS_MOST]); /* how many; 0: none */

bool half_gradients(const struct plan_options *o, const struct op *op); /* of parameters that op writes */

#endif
