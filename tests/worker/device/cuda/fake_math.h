/* What fake_gpu.c computes by itself. */
#ifndef CRUN_TESTS_FAKE_MATH_H
#define CRUN_TESTS_FAKE_MATH_H

#include "worker/device/cuda/gpu/gpu.h"

double fake_get(const void *p, enum dtype t, size_t i);
void fake_set(void *p, enum dtype t, size_t i, double x);
void fake_dnn(const struct gpu_dnn *d);
/* What fake_dnn() made, as an engine that errs (enum fake_wrong) would have. */
void fake_spoil(const struct gpu_dnn *d, int how);
void fake_gemm(const struct gpu_gemm *g);

#endif
