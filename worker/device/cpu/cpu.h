/* What the cpu device offers beyond struct device_ops: for benchmarks. */
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
