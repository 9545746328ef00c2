/* What fake_gpu.c computes by itself. */
#ifndef CRUN_TESTS_FAKE_MATH_H
#define CRUN_TESTS_FAKE_MATH_H

#include "worker/device/cuda/gpu/gpu.h"

double fake_get(const void *p, enum dtype t, size_t i);
void fake_set(void *p, enum dtype t, size_t i, double x);
void fake_dnn(const struct gpu_dnn *d);
void fake_gemm(const struct gpu_gemm *g);

#endif
