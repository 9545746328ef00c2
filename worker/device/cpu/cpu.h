/* The cpu device: oneDNN for convolutions and linear layers, own kernels for the rest, values in the layout that oneDNN
 * likes best from layer to layer.
 *
 *   program -> plan.c: fused ops (fuse.h) -> emit_dnn.c, emit_own.c: steps on buffers -> plan_memory.c: one block of
 *   memory, placed by liveness -> run: cpu.c calls step after step (steps*.c -> dnnl_wrap.c, kern/kern_isa.c)
 *
 * plan.h is the inside of a plan, dnnl_wrap.h hides which oneDNN it is, kern/kern.h has the own kernels, compiled once
 * for each instruction set. Here is what the device offers beyond struct device_ops: for benchmarks. */
#ifndef CRUN_WORKER_DEVICE_CPU_CPU_H
#define CRUN_WORKER_DEVICE_CPU_CPU_H

#include <stddef.h>
#include <stdio.h>

struct plan;

/* A line per step: mean milliseconds a run, what it does, and oneDNN's name for the implementation. */
void cpu_plan_profile(const struct plan *plan, FILE *out);
/* Memory of activations, gradients of activations and weight copies. */
size_t cpu_plan_bytes(const struct plan *plan);

#endif
