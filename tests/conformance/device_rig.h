/* One device with a program planned on it, reached in doubles: the same test code drives ref and the device under
 * test. */
#ifndef CRUN_TESTS_CONFORMANCE_DEVICE_RIG_H
#define CRUN_TESTS_CONFORMANCE_DEVICE_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "worker/device/device.h"
#include "worker/program/program.h"

/* The device under test, and the opener of it and of ref: device_rig_cpu.c, or a test's own. */
extern const char *const rig_device;
int rig_open(struct device **ret, const char *name, const struct device_options *o, struct err *e);
size_t rig_plan_bytes(const struct plan *pl);          /* memory of its tensors */
void rig_plan_profile(const struct plan *pl, FILE *f); /* cpu only: a line a step */

struct mode {
    const char *name;
    enum dtype compute;
    bool emulate;
    enum half_rule half;
    bool half_bn;
    enum memory_format format;
    bool mixes;                /* plan_options */
    int others;                /* the same */
    bool tf32, unfused, timed; /* GPUs: options of that name; unless engines are timed, equal runs give equal bits */
};
extern const struct mode mode_f64, mode_f32, mode_bf16, mode_emulated;
extern const struct mode mode_native_fp16_o1, mode_native_bf16_o1;
extern const struct mode mode_fp16_o1, mode_fp16_o2, mode_fp16_o3, mode_bf16_o1;
extern const struct mode mode_fp16_nchw, mode_bf16_nchw, mode_nchw, mode_nhwc, mode_fp16;
extern const struct mode mode_tf32;

struct side {
    const struct program *p;
    struct device *d;
    struct plan *plan;
    struct mode mode;
    int n;
    bool training;
    void *params, *stats, *reduce, *momentum;
};

/* Opens the device and plans; fails the test on any error. */
void side_open(struct side *s, const char *device, const struct program *p, const struct mode *m, int batch,
               bool training, bool keep_all, int threads);
void side_close(struct side *s);
/* Arena elements as doubles. */
void arena_put(const struct side *s, void *arena, size_t first, const double *in, size_t n);
void arena_get(const struct side *s, const void *arena, size_t first, double *out, size_t n);
/* Parameters from their initial values, rounded to what `like` can represent. */
void side_initialise(const struct side *s, uint64_t seed);
size_t side_count(const struct side *s, int tensor);
void side_put(const struct side *s, int tensor, const double *in);
double *side_get(const struct side *s, int tensor); /* free() it */
void side_run(const struct side *s, const struct batch *b, double grad_scale, bool accumulate, uint64_t version,
              const struct run_hooks *h);

/* NaN into every tensor that an op makes, and into its sums of the reduce arena: what a run leaves out is seen. Needs
 * keep_all. */
void side_poison(const struct side *s);

/* Reproducible noise in [-1, 1), rounded to fp32, or to a half. Other noise for every CRUN_TEST_SEED of the
 * environment. */
void noise(double *out, size_t n, uint64_t seed, enum dtype t);
/* |a - b| / |b| in the Euclidean norm. */
double relative_distance(const double *a, const double *b, size_t n);

/* A batch of noise images, labels in turn, weights 1, numbers of samples. */
struct images {
    struct batch b;
    uint8_t *pixels;
    int32_t *labels;
    float *weights;
    uint32_t *numbers;
};
void images_make(struct images *im, const struct program *p, int n, uint64_t seed);
void images_free(struct images *im);

#endif
