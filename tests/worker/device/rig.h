/* A program on the ref device with its arenas, for tests. Anything that goes wrong fails the test. */
#ifndef CRUN_TESTS_DEVICE_RIG_H
#define CRUN_TESTS_DEVICE_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "worker/device/device.h"
#include "worker/program/program.h"

struct rig {
    struct device *dev;
    struct plan *plan;
    const struct program *p;
    int n;
    double *params, *stats, *reduce;
};

/* Parameters drawn by their own rules with this seed; scales and shifts of batch norms are spread around 1 and 0. */
void rig_open(struct rig *r, const struct program *p, int batch, bool training, uint64_t seed);
void rig_open_slice(struct rig *r, const struct program *p, int batch, bool training, uint64_t seed, int first,
                    int end);
void rig_emulate_fp16(struct rig *r); /* from now on; after rig_open() of a whole program */
void rig_close(struct rig *r);
void rig_run(struct rig *r, const struct batch *b, bool accumulate, const struct run_hooks *hooks);

void rig_put(struct rig *r, const char *tensor, const double *values);
void rig_get(struct rig *r, const char *tensor, double *values);
double *rig_param(struct rig *r, const char *name);    /* in params or stats */
double *rig_gradient(struct rig *r, const char *name); /* in reduce; of a statistic: its sums */
double *rig_metrics(struct rig *r);

/* Random images, labels and numbers, weights 1. Freed with sample_free(). */
struct samples {
    struct batch b;
    uint8_t *images;
    int32_t *labels;
    float *weights;
    uint32_t *numbers;
};
void samples_make(struct samples *s, const struct program *p, int n, uint64_t seed);
void samples_free(struct samples *s);

void assert_near(const char *what, double got, double expected, double tolerance);
void assert_all(struct rig *r, const char *tensor, const double *expected, int n); /* within 1e-14 */

/* ||a - b|| / ||b||. */
double relative_error(const double *a, const double *b, size_t n);

/* Deterministic values in [-1, 1). */
void noise(double *out, size_t n, uint64_t seed);

/* Small networks: images of 3 x 9 x 9, 4 classes. */
struct program *net_basic(void);      /* stem with max pool, two basic blocks, one with a projection */
struct program *net_bottleneck(void); /* a bottleneck with a strided 3x3 and one without projection */
struct program *net_flat(void);       /* convolutions with bias, max pools, a linear layer over a map */
struct program *net_text(void);       /* tokens, a tied head, attention that turns its queries, a product of two */
struct program *net_attention(void);  /* a class token, positions, attention with shared keys, causal and not */
struct program *net_rows(void); /* norms, linear layers of positions, groups, all that is dropped; no batch norm */

#endif
