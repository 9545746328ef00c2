/* The budget of a training step in fp16 on a GPU that is not there, from its plan alone: what each node of the captured
 * graph moves and computes, how long that takes on an H200 and an H100, and what it adds up to.
 *   gpu_budget [arch=resnet50] [batch=256] [nodes=0|1] [fused=1|0] [check=0|1] [table=0|1]
 * nodes=0: sums alone. fused=0: without fused patterns. check=1: fails where ResNet-50's aims are missed (batch 256)
 * by all that a step of a GPU that is alone enqueues on its compute stream (run/step.c): the graph, and around it what
 * `around` below has. table=1: a line a model instead, vision transformers, ConvNeXt and, in bf16, GPT-2 among them; a
 * sample of a model of tokens is as many as its text says. cuDNN is not asked
 * for plans; what it was seen to fuse for an H200 (test_planning) is what is planned here.
 *
 * The model of a node: it moves its bytes at 90 % of what was measured for large copies, and computes at some part E
 * of what was measured for large products, whichever takes longer, and the next node begins NODE_US later. Measured on
 * an H200: 4.3 TB/s, 790 TFLOP/s. An H100 has the same multiprocessors, and memory at 3.35 / 4.8 of that speed. E is
 * asked for: what the published record (MLPerf Training 4.0: 7,950 images/s a H200, 7,157 a H100; a line through both
 * says 94 us an image that no memory speeds up, 33 % of 790 TFLOP/s) amounts to, and which E this plan needs to reach
 * it. Own kernels that multiply much (depthwise convolutions) are taken to reach half of 67 TFLOP/s in fp32; no card
 * has said so.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "tests/bench/options.h"
#include "tests/worker/device/cuda/fake_gpu.h"
#include "worker/device/cuda/plan.h"
#include "worker/device/cuda/traffic.h"
#include "worker/model/model.h"

static const double NODE_US = 1.5, SHARE = 0.9, RECORD_E = 0.33, RECORD = 7950;
static const double AIM_E = 0.376, AIM_BYTES = 73e9;
enum { AIM_NODES = 297 };

struct card {
    const char *name;
    double bytes, flop; /* a second, as measured */
};
static const struct card h200 = {"H200", 4.3e12, 790e12}, h100 = {"H100", 4.3e12 * 3.35 / 4.8, 790e12};
static const double FP32 = 0.5 * 67e12, PEAK = 989e12; /* of both */

struct options {
    const char *arch;
    int tokens; /* of a sample; 0: it is a picture */
    int batch, nodes, fused, check, table;
};

struct totals {
    int nodes;
    double read, written, flop, flop_fp32;
};

static double node_us(const struct card *c, const struct step_traffic *t, double e)
{
    const double memory = (t->read + t->written) / (SHARE * c->bytes),
                 compute = t->flop / (e * c->flop) + t->flop_fp32 / FP32;
    return 1e6 * (memory > compute ? memory : compute) + t->nodes * NODE_US;
}

/* Microseconds of a step. */
static double step_us(const struct cuda_plan *pl, const struct card *c, double e)
{
    double us = 0;
    for (int i = 0; i < pl->nsteps; i++) {
        struct step_traffic t;
        cuda_step_traffic(pl, pl->steps[i], &t);
        us += node_us(c, &t, e);
    }
    return us;
}

static double images(const struct cuda_plan *pl, const struct card *c, double e)
{
    return 1e6 * pl->o.batch / step_us(pl, c, e);
}

/* What a step enqueues around its graph; SGD, with a loss scale. */
struct around {
    const char *label;
    struct step_traffic t;
};
enum { AROUND_MAX = 9 };

static int around(const struct cuda_plan *pl, struct around out[AROUND_MAX])
{
    const double n = (double)pl->p->n_train, stats = (double)pl->p->n_stats, batch = (double)pl->stage_bytes;
    double copies = 0;
    for (int i = pl->pack_at; i < pl->pack_at + pl->npack; i++)
        copies += (double)(cuda_plan_form_elements(&pl->host_table[i]) * dtype_size(pl->host_table[i].type));
    const struct around all[] = {
        {"batch to where it is read", {.read = batch, .written = batch, .nodes = 1}},
        {"weights' copies", {.read = 4 * (double)pl->pack_elements, .written = copies, .nodes = 1}},
        {"scale of the loss", {.nodes = 1}},
        {"wishes among metrics", {.nodes = 2}},
        {"norm of gradients", {.read = 4 * n, .nodes = 2}},
        {"verdict", {.nodes = 1}},
        {"update", {.read = 12 * n, .written = 8 * n, .nodes = 1}},
        {"running statistics", {.read = 8 * stats, .written = 4 * stats, .nodes = 1}},
        {"results to the host", {.nodes = 2}},
    };
    memcpy(out, all, sizeof all);
    return sizeof all / sizeof *all;
}

/* All of it together, and its microseconds. */
static struct step_traffic sum_around(const struct cuda_plan *pl, double *ret_us)
{
    struct around a[AROUND_MAX];
    struct step_traffic sum = {0};
    *ret_us = 0;
    for (int i = 0, n = around(pl, a); i < n; i++) {
        sum.read += a[i].t.read;
        sum.written += a[i].t.written;
        sum.nodes += a[i].t.nodes;
        *ret_us += node_us(&h200, &a[i].t, RECORD_E);
    }
    return sum;
}

/* The part of the products' speed at which so many images a second are reached, with us more a step; above 1: at
 * none. */
static double needed(const struct cuda_plan *pl, const struct card *c, double rate, double us)
{
    double low = 0.01, high = 1.01;
    for (int i = 0; i < 50; i++) {
        const double e = (low + high) / 2;
        *(1e6 * pl->o.batch / (step_us(pl, c, e) + us) < rate ? &low : &high) = e;
    }
    return high;
}

static const char *where(const struct cuda_plan *pl, const struct step *s, char *out, size_t cap)
{
    char graph[96] = "";
    const int t = s->op >= 0 ? pl->p->ops[s->op].out : -1;
    if (s->kind == STEP_DNN)
        cudnn_describe(s->dnn.pattern, &s->dnn.shape, graph, sizeof graph);
    snprintf(out, cap, "%s", graph[0] ? graph : t >= 0 ? pl->p->tensors[t].name : "");
    return out;
}

static void print_nodes(const struct cuda_plan *pl)
{
    char place[128];
    printf("%5s %-24s %9s %9s %9s %8s %8s  %s\n", "step", "what", "read MB", "write MB", "GFLOP", "H200 us", "H100 us",
           "of");
    for (int i = 0; i < pl->nsteps; i++) {
        const struct step *s = pl->steps[i];
        struct step_traffic t;
        cuda_step_traffic(pl, s, &t);
        if (t.nodes)
            printf("%5d %-24s %9.1f %9.1f %9.1f %8.1f %8.1f  %s\n", i, s->label, t.read / 1e6, t.written / 1e6,
                   t.flop / 1e9, node_us(&h200, &t, RECORD_E), node_us(&h100, &t, RECORD_E),
                   where(pl, s, place, sizeof place));
    }
}

/* A line a kind of step: their number, bytes, share. */
static void print_kinds(const struct cuda_plan *pl)
{
    printf("%-26s %6s %9s %9s %9s\n", "what", "nodes", "GB", "TFLOP", "H200 us");
    for (int i = 0; i < pl->nsteps; i++) {
        struct step_traffic t;
        struct totals sum = {0};
        double us = 0;
        bool told = false;
        for (int k = 0; k < pl->nsteps; k++) {
            if (strcmp(pl->steps[k]->label, pl->steps[i]->label) != 0)
                continue;
            told |= k < i;
            cuda_step_traffic(pl, pl->steps[k], &t);
            sum.nodes += t.nodes;
            sum.read += t.read + t.written;
            sum.flop += t.flop;
            us += node_us(&h200, &t, RECORD_E);
        }
        if (!told && sum.nodes)
            printf("%-26s %6d %9.2f %9.2f %9.0f\n", pl->steps[i]->label, sum.nodes, sum.read / 1e9, sum.flop / 1e12,
                   us);
    }
}

static void print_around(const struct cuda_plan *pl)
{
    struct around a[AROUND_MAX];
    printf("around the graph:\n");
    for (int i = 0, n = around(pl, a); i < n; i++)
        printf("%-26s %6d %9.2f %9s %9.0f\n", a[i].label, a[i].t.nodes, (a[i].t.read + a[i].t.written) / 1e9, "",
               node_us(&h200, &a[i].t, RECORD_E));
}

static struct totals total(const struct cuda_plan *pl)
{
    struct totals sum = {0};
    for (int i = 0; i < pl->nsteps; i++) {
        struct step_traffic t;
        cuda_step_traffic(pl, pl->steps[i], &t);
        sum.nodes += t.nodes;
        sum.read += t.read;
        sum.written += t.written;
        sum.flop += t.flop;
        sum.flop_fp32 += t.flop_fp32;
    }
    return sum;
}

/* A line of the table: with products as fast as the record's, and twice that. */
static void print_line(const struct cuda_plan *pl, const struct options *o)
{
    const struct totals sum = total(pl);
    double around_us;
    const struct step_traffic more = sum_around(pl, &around_us);
    struct plan_memory memory;
    cuda_plan_memory(&pl->base, &memory);
    printf("%-14s %5d %6d %7.1f %7.2f %6.2f", o->arch, o->batch, sum.nodes + more.nodes,
           (sum.read + sum.written + more.read + more.written) / 1e9, sum.flop / 1e12, sum.flop_fp32 / 1e12);
    for (int k = 1; k <= 2; k++) {
        const double us = step_us(pl, &h200, k * RECORD_E) + around_us;
        printf("   %7.1f %7.0f %5.1f", us / 1e3, 1e6 * o->batch * (o->tokens ? o->tokens : 1) / us,
               100 * sum.flop / (us * 1e-6) / PEAK);
    }
    printf("   %6.1f\n", (double)(memory.activations + memory.weights + memory.workspace) / 0x1p30);
}

static int report(const struct cuda_plan *pl, const struct options *o)
{
    const struct totals sum = total(pl);
    double around_us;
    const struct step_traffic more = sum_around(pl, &around_us);
    const double bytes = sum.read + sum.written, all = bytes + more.read + more.written,
                 e = needed(pl, &h200, RECORD, around_us);
    if (o->nodes)
        print_nodes(pl);
    print_kinds(pl);
    print_around(pl);
    printf("%s fp16 batch %d, the graph: %d nodes, %.1f GB (%.1f read, %.1f written), %.2f TFLOP\n", o->arch, o->batch,
           sum.nodes, bytes / 1e9, sum.read / 1e9, sum.written / 1e9, sum.flop / 1e12);
    printf("with all around it: %d nodes, %.1f GB a step\n", sum.nodes + more.nodes, all / 1e9);
    printf("with products at %.0f %% (the record's), the graph: H200 %.1f ms, %.0f images/s; H100 %.1f ms, %.0f "
           "images/s\n",
           100 * RECORD_E, step_us(pl, &h200, RECORD_E) / 1e3, images(pl, &h200, RECORD_E),
           step_us(pl, &h100, RECORD_E) / 1e3, images(pl, &h100, RECORD_E));
    printf("%.0f images/s on an H200 need products at %.2f %% of 790 TFLOP/s (the record fits %.0f %%); the graph "
           "alone, at %.2f %%\n",
           RECORD, 100 * e, 100 * RECORD_E, 100 * needed(pl, &h200, RECORD, 0));
    if (o->check && (e > AIM_E || all > AIM_BYTES || sum.nodes + more.nodes > AIM_NODES)) {
        fprintf(stderr, "gpu_budget: %.2f %%, %.2f GB and %d nodes a step; expected at most %.1f %%, %.0f GB and %d\n",
                100 * e, all / 1e9, sum.nodes + more.nodes, 100 * AIM_E, AIM_BYTES / 1e9, AIM_NODES);
        return 1;
    }
    return 0;
}

static int plan_it(struct device *d, const struct program *p, int batch, enum dtype type, struct plan **ret,
                   struct err *e)
{
    void *arena[3];
    const size_t n[] = {p->n_train, p->n_stats, p->n_reduce};
    for (int i = 0; i < 3; i++)
        TRY(d->ops->alloc(d, n[i] * sizeof(float), &arena[i], e));
    const struct plan_options o = {
        .batch = batch, .training = true, .compute = type, .params = arena[0], .stats = arena[1], .reduce = arena[2]};
    return d->ops->plan(d, p, &o, ret, e);
}

static int run(const struct options *o, int *ret_missed, struct err *e)
{
    const struct model_options m = {.arch = o->arch,
                                    .classes = 1000,
                                    .input = o->tokens ? input_tokens(o->tokens, 0)
                                                       : input_pictures(3, 224, 224, NULL, NULL)};
    const struct cuda_options c = {.graphs = true, .fused_patterns = o->fused};
    struct program *p;
    struct gpu *g;
    struct device *d;
    struct plan *plan;
    TRY(model_build(&p, &m, e));
    int rc = fake_gpu_open(&g, &(struct fake_options){.idle = true, .memory = (size_t)1 << 40});
    if (rc == 0)
        rc = cuda_open_on(&d, g, NULL, &c, e);
    if (rc < 0) {
        program_destroy(p);
        return rc;
    }
    rc = plan_it(d, p, o->batch, o->tokens ? DT_BF16 : DT_F16, &plan, e);
    if (rc == 0) {
        if (o->table)
            print_line((const struct cuda_plan *)plan, o);
        else
            *ret_missed = report((const struct cuda_plan *)plan, o);
        d->ops->plan_close(plan);
    }
    d->ops->close(d);
    program_destroy(p);
    return rc;
}

static int print_table(struct options o, struct err *e)
{
    static const struct {
        const char *arch;
        int tokens, batch; /* 0: that of the command line */
    } all[] = {{"resnet50", 0, 0},      {"vit_b_16", 0, 0}, {"vit_s_16", 0, 0},
               {"convnext_tiny", 0, 0}, {"gpt2", 1024, 32}, {"gpt2_xl", 1024, 8}};
    int missed = 0;
    printf("a step in fp16 (of tokens, bf16), predicted for an H200; products at %.0f and %.0f %% of 790 TFLOP/s; /s: "
           "pictures, or tokens\n",
           100 * RECORD_E, 200 * RECORD_E);
    printf("%-14s %5s %6s %7s %7s %6s   %7s %7s %5s   %7s %7s %5s   %6s\n", "model", "batch", "nodes", "GB", "TFLOP",
           "fp32", "ms", "/s", "% 989", "ms", "/s", "% 989", "GiB");
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        struct options one = o;
        one.arch = all[i].arch;
        one.tokens = all[i].tokens;
        one.batch = all[i].batch ? all[i].batch : o.batch;
        TRY(run(&one, &missed, e));
    }
    return 0;
}

int main(int argc, char **argv)
{
    static const char *const names[] = {"arch", "batch", "nodes", "fused", "check", "table", NULL};
    refuse_others(argc, argv, names);
    const struct options o = {.arch = option(argc, argv, "arch", "resnet50"),
                              .batch = number_in(argc, argv, "batch", "256", 1, 1000000),
                              .nodes = number_in(argc, argv, "nodes", "0", 0, 1),
                              .fused = number_in(argc, argv, "fused", "1", 0, 1),
                              .check = number_in(argc, argv, "check", "0", 0, 1),
                              .table = number_in(argc, argv, "table", "0", 0, 1)};
    struct err e = {0};
    int missed = 0;
    if (o.check && (strcmp(o.arch, "resnet50") != 0 || o.batch != 256)) {
        fprintf(stderr, "gpu_budget: check=1 (expected arch=resnet50 batch=256, whose aims it checks)\n");
        return 2;
    }
    if ((o.table ? print_table(o, &e) : run(&o, &missed, &e)) < 0) {
        fprintf(stderr, "gpu_budget: %s\n", e.text);
        return e.code == -EINVAL ? 2 : 1;
    }
    return missed;
}
