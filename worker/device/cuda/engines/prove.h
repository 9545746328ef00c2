/* Does an engine compute what its graph means? Inputs of chance, one run, and what came out is looked at: no element of
 * the result may be left unwritten or be no number, and at some of them (kernels.h: half anywhere, half at the ends of
 * samples, channels and planes) the distance from the convolution by definition, in double, may be
 *
 *     2 x that of a result which steps of their own would have stored, and sqrt(terms) 2^-24 for sums in fp32
 *     (2^-21 where halves' are kept in fp32: tensor cores cut bits off)
 *
 * Sums that are made on the way are compared with own kernels' over the result itself.
 *
 * Attention: prove_attention.c.
 *
 * Where equal bits are asked for, and of the backward attention that promises them, it runs again: of all that it
 * wrote and somebody reads, 64 bits a tensor are compared with those of its first run (KERNEL_CHECKSUM).
 *
 * It writes over the plan's buffers and over batch norm's vectors; parameters are left alone. */
#ifndef CRUN_WORKER_DEVICE_CUDA_ENGINES_PROVE_H
#define CRUN_WORKER_DEVICE_CUDA_ENGINES_PROVE_H

#include <stddef.h>
#include <stdint.h>

#include "worker/device/cuda/gpu/gpu.h"

struct cuda_plan;
struct err;

struct prover {
    struct cuda_plan *pl;
    void *memory; /* scratch, device memory */
    size_t bytes;
    struct k_product product; /* of the graph at hand */
    bool of_attention;
    int samples;
    double *exact, *stored, *out, *bad, *sums, *partial;
    unsigned *counters;
    float *gamma, *beta, *attention;
    uint64_t *parts;              /* of a checksum */
    uint64_t bits[DNN_SLOTS_MAX]; /* prove_remember() */
};

/* Inputs for a graph, and what it ought to give. d->slot may be changed: parameters are replaced. Enqueued on the
 * compute stream, as all that follows. -ENOMEM. */
int prove_begin(struct prover *v, struct gpu_dnn *d, struct err *e);
/* Before the engine runs: what it must write becomes NaN, what it must add to a number. */
int prove_poison(struct prover *v, const struct gpu_dnn *d, struct err *e);
/* After it. 0: *ret_ratio is its distance by what is allowed, 0..1. ERR_MISMATCH: *e says what is wrong. */
int prove_result(struct prover *v, const struct gpu_dnn *d, double *ret_ratio, struct err *e);
/* After it: which bits it wrote. */
int prove_remember(struct prover *v, const struct gpu_dnn *d, struct err *e);
/* After it ran once more, on the same inputs. ERR_MISMATCH: *e says which tensor has other bits than what is
 * remembered. */
int prove_same(struct prover *v, const struct gpu_dnn *d, struct err *e);
void prove_finish(struct prover *v);

/* prove_attention.c: what these do of attention. Floats of scratch; inputs and what is expected; the verdict. */
size_t prove_attention_floats(const struct prover *v);
int prove_attention_begin(struct prover *v, const struct gpu_dnn *d, struct err *e);
int prove_attention_result(struct prover *v, const struct gpu_dnn *d, double *ret_ratio, struct err *e);

#endif
