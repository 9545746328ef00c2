/* The cpu device: fp32 arenas in plain memory, oneDNN for convolutions and linear layers, own kernels for the rest.
 *
 * Threads are OpenMP's, which oneDNN uses, too. They should wait passively (OMP_WAIT_POLICY=passive, read by the
 * runtime when the process starts): the loader and the communication thread share the cores. */
#include "worker/device/cpu/cpu.h"

#include <errno.h>
#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

#include "worker/device/cpu/plan.h"
#include "worker/device/host_common.h"

static int cpu_open(struct device **ret, const struct device_options *o, struct err *e)
{
    if (o->threads < 1)
        return err_set(e, -EINVAL, "%d compute threads (expected at least 1)", o->threads);
    struct cpu *c = calloc(1, sizeof(*c));
    if (!c)
        return err_set(e, -ENOMEM, "no memory for a device");
    c->base.ops = &device_cpu_ops;
    c->threads = o->threads;
    omp_set_num_threads(c->threads);
    int rc = dnn_open(&c->dnn, e);
    if (rc < 0) {
        free(c);
        return rc;
    }
    c->lanes = dnn_lanes();
    c->amx = dnn_has_amx();
    c->native_bf16 = dnn_native_bf16(c->dnn);
    c->kern = kern_select(c->lanes, c->native_bf16);
    *ret = &c->base;
    return 0;
}

static void cpu_close(struct device *d)
{
    struct cpu *c = (struct cpu *)d;
    if (!c)
        return;
    dnn_close(c->dnn);
    free(c);
}

static int cpu_alloc(struct device *d, size_t bytes, void **ret, struct err *e)
{
    (void)d;
    return host_alloc(bytes, ret, e);
}

static void cpu_release(struct device *d, void *p)
{
    (void)d;
    free(p);
}

static int cpu_copy(struct device *d, void *dst, const void *src, size_t bytes, struct err *e)
{
    (void)d;
    (void)e;
    if (bytes)
        memcpy(dst, src, bytes);
    return 0;
}

static int cpu_sync(struct device *d, struct err *e)
{
    (void)d;
    (void)e;
    return 0;
}

static int cpu_update(struct device *d, const struct update *u, void *params, const void *grads, void *momentum,
                      const void *count, struct err *e)
{
    (void)e;
    const struct cpu *c = (const struct cpu *)d;
    const float n = *(const float *)count;
    if (n != 0)
        c->kern->update(u, params, grads, momentum, (double)n, c->threads);
    return 0;
}

static int cpu_grad_norm(struct device *d, const void *grads, size_t n, double grad_mul, const void *count, void *norm,
                         struct err *e)
{
    (void)e;
    const struct cpu *c = (const struct cpu *)d;
    const double samples = count ? (double)*(const float *)count : 1;
    *(float *)norm =
        samples != 0 ? (float)(sqrt(c->kern->squares(grads, n, c->threads)) * fabs(grad_mul) / samples) : 0;
    return 0;
}

static int cpu_blend(struct device *d, void *to, const void *from, size_t n, double weight, struct err *e)
{
    (void)e;
    const struct cpu *c = (const struct cpu *)d;
    c->kern->blend(to, from, n, (float)(1 - weight), (float)weight, c->threads);
    return 0;
}

static int cpu_round(struct device *d, void *x, size_t n, enum dtype t, struct err *e)
{
    (void)e;
    const struct cpu *c = (const struct cpu *)d;
    if (t == DT_F16 || t == DT_BF16)
        c->kern->round(x, n, t == DT_F16 ? STORE_ROUNDED_F16 : STORE_ROUNDED, c->threads);
    return 0;
}

static int cpu_update_stats(struct device *d, void *stats, const void *sums, size_t n, double momentum,
                            const void *count, struct err *e)
{
    (void)e;
    const struct cpu *c = (const struct cpu *)d;
    float samples = *(const float *)count;
    if (samples != 0)
        c->kern->blend(stats, sums, n, (float)(1 - momentum), (float)(momentum / (double)samples), c->threads);
    return 0;
}

static int cpu_describe(struct device *d, char *out, size_t cap)
{
    const struct cpu *c = (const struct cpu *)d;
    char version[32], isa[64];
    dnn_describe(version, sizeof(version), isa, sizeof(isa));
    return snprintf(out, cap, "cpu: oneDNN %s (%s), own kernels %s, %d thread%s, bf16 %s", version, isa, c->kern->name,
                    c->threads, c->threads == 1 ? "" : "s", c->native_bf16 ? "native" : "emulated");
}

static bool cpu_native(struct device *d, enum dtype compute, enum half_rule half)
{
    const struct cpu *c = (const struct cpu *)d;
    return compute == DT_F32 || (compute == DT_BF16 && c->native_bf16 && half == HALF_STORED);
}

const struct device_ops device_cpu_ops = {
    .name = "cpu",
    .real = DT_F32,
    .open = cpu_open,
    .close = cpu_close,
    .alloc = cpu_alloc,
    .release = cpu_release,
    .upload = cpu_copy,
    .download = cpu_copy,
    .sync = cpu_sync,
    .plan = cpu_plan_create,
    .plan_close = cpu_plan_close,
    .plan_memory = cpu_plan_memory,
    .run = cpu_plan_run,
    .prepare = cpu_plan_prepare,
    .get = cpu_plan_get,
    .put = cpu_plan_put,
    .update = cpu_update,
    .grad_norm = cpu_grad_norm,
    .blend = cpu_blend,
    .round = cpu_round,
    .update_stats = cpu_update_stats,
    .describe = cpu_describe,
    .native = cpu_native,
};
