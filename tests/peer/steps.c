/* steps DEVICE ARCH|FILE.net SIZE CLASSES BATCH STEPS THREADS CLIP DIR: training steps of a network from given weights
 * on given images, for a comparison with another framework. Plain SGD at rate 0.01; where CLIP is not 0, gradients are
 * clipped to that norm. DEVICE is ref or cpu, or cpu-bf16: halves are computed with, as trainer --amp bf16 does.
 *
 * Of a model of tokens SIZE is the length of a sample, CLASSES the vocabulary; a negative SIZE asks for the logits of
 * all positions as a tensor, without it there are none.
 *
 * Reads DIR/weights.safetensors (torchvision's names, F64 or F32), DIR/images (STEPS, BATCH, SIZE, SIZE, 3) u8, or of
 * tokens (STEPS, BATCH, SIZE) i32, DIR/labels (STEPS, BATCH), of tokens (STEPS, BATCH, SIZE), i32. Writes
 * DIR/<DEVICE>.safetensors, all F64: logits and "grad.<name>" of the first step (not clipped), the losses of all, and
 * the parameters and statistics after the last under their own names. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "worker/ckpt/safetensors.h"
#include "worker/device/device.h"
#include "worker/model/model.h"
#include "worker/parallel/ownership.h"
#include "worker/program/program.h"
#include "worker/state/state.h"

struct steps {
    struct program *p;
    struct device *dev;
    struct plan *plan;
    struct ownership own;
    struct state s;
    int batch, steps;
    double clip;
    uint8_t *images;
    int32_t *labels;
    float *weights;
    struct ckpt_tensor *out; /* data malloc'ed */
    size_t n_out;
};

static void *need(size_t n, size_t size)
{
    void *p = calloc(n ? n : 1, size);
    if (!p)
        abort();
    return p;
}

static int read_file(const char *dir, const char *name, void *dst, size_t bytes, struct err *e)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "rb");
    size_t n = f ? fread(dst, 1, bytes, f) : 0;
    if (f)
        fclose(f);
    return n == bytes ? 0 : err_set(e, -EIO, "%s holds %zu bytes (expected %zu)", path, n, bytes);
}

static double number(const void *v, enum dtype t, size_t i)
{
    return t == DT_F64 ? ((const double *)v)[i] : (double)((const float *)v)[i];
}

static void put_number(void *v, enum dtype t, size_t i, double x)
{
    if (t == DT_F64)
        ((double *)v)[i] = x;
    else
        ((float *)v)[i] = (float)x;
}

static int load_one(struct steps *t, struct safetensors *f, const struct param *q, void *arena, struct err *e)
{
    int at = safetensors_find(f, q->name);
    int64_t bytes = 0;
    if (at < 0 || ckpt_tensor_bytes(safetensors_at(f, (size_t)at), &bytes) < 0)
        return err_set(e, -ENOENT, "no weights for %s", q->name);
    const enum dtype from = safetensors_at(f, (size_t)at)->dtype;
    if ((size_t)bytes != q->count * dtype_size(from))
        return err_set(e, -EINVAL, "%s has another shape here", q->name);
    void *raw = need((size_t)bytes, 1), *real = need(q->count, dtype_size(t->s.real));
    int rc = safetensors_read(f, (size_t)at, raw, NULL, e);
    for (size_t i = 0; i < q->count; i++)
        put_number(real, t->s.real, i, number(raw, from, i));
    if (rc == 0)
        rc = t->dev->ops->upload(t->dev, (char *)arena + state_bytes(&t->s, q->offset), real,
                                 state_bytes(&t->s, q->count), e);
    free(raw);
    free(real);
    return rc;
}

static int load_weights(struct steps *t, const char *dir, struct err *e)
{
    char path[4096];
    struct safetensors *f;
    snprintf(path, sizeof path, "%s/weights.safetensors", dir);
    TRY(safetensors_open(&f, path, e));
    int rc = 0;
    for (int i = 0; i < t->p->nparams && rc == 0; i++) {
        const struct param *q = &t->p->params[i];
        rc = load_one(t, f, q, q->role == PARAM_TRAIN ? t->s.params : t->s.stats, e);
    }
    safetensors_close(f);
    return rc;
}

/* Take down a part of an arena as a tensor of the result. */
static int keep(struct steps *t, const char *prefix, const struct param *q, const void *arena, struct err *e)
{
    void *real = need(q->count, dtype_size(t->s.real));
    double *v = need(q->count, sizeof *v);
    TRY(t->dev->ops->download(t->dev, real, (const char *)arena + state_bytes(&t->s, q->offset),
                              state_bytes(&t->s, q->count), e));
    for (size_t i = 0; i < q->count; i++)
        v[i] = number(real, t->s.real, i);
    free(real);
    struct ckpt_tensor *o = &t->out[t->n_out++];
    *o = (struct ckpt_tensor){.dtype = DT_F64, .ndim = q->ndim, .data = v};
    snprintf(o->name, sizeof o->name, "%s%s", prefix, q->name);
    memcpy(o->shape, q->shape, sizeof o->shape);
    return 0;
}

static void keep_values(struct steps *t, const char *name, double *v, int64_t n)
{
    struct ckpt_tensor *o = &t->out[t->n_out++];
    *o = (struct ckpt_tensor){.dtype = DT_F64, .ndim = 1, .shape = {n}, .data = v};
    snprintf(o->name, sizeof o->name, "%s", name);
}

static int keep_first(struct steps *t, struct err *e)
{
    const int64_t n = (int64_t)t->batch * t->p->classes * (int64_t)input_row_labels(&t->p->input);
    if (t->p->logits >= 0) {
        double *logits = need((size_t)n, sizeof *logits);
        TRY(t->dev->ops->get(t->plan, t->p->logits, logits, e));
        keep_values(t, "logits", logits, n);
    }
    for (int i = 0; i < t->p->nparams; i++)
        if (t->p->params[i].role == PARAM_TRAIN)
            TRY(keep(t, "grad.", &t->p->params[i], t->s.reduce, e));
    return 0;
}

static int step(struct steps *t, int k, double *loss, struct err *e)
{
    const struct device_ops *ops = t->dev->ops;
    const size_t image = input_row_bytes(&t->p->input), n = (size_t)t->batch;
    struct run_args run = {.batch = {.rows = t->images + (size_t)k * n * image,
                                     .labels = t->labels + (size_t)k * n * input_row_labels(&t->p->input),
                                     .weights = t->weights},
                           .grad_scale = 1,
                           .params_version = t->s.version};
    double m[METRIC_N];
    TRY(ops->run(t->plan, &run, e));
    TRY(state_get_metrics(&t->s, m, e));
    *loss = m[METRIC_LOSS] / m[METRIC_COUNT];
    if (k == 0)
        TRY(keep_first(t, e));
    const char *tail = (const char *)t->s.reduce + state_bytes(&t->s, t->p->n_train);
    const void *count = tail + state_bytes(&t->s, t->p->n_stats + METRIC_COUNT);
    struct update u = {.rule = UPDATE_SGD, .n = t->p->n_train, .lr = 0.01, .grad_mul = 1};
    if (t->clip > 0) {
        TRY(ops->grad_norm(t->dev, t->s.reduce, t->p->n_train, 1, count, t->s.norm, e));
        u.norm = t->s.norm;
        u.max_norm = t->clip;
    }
    TRY(ops->update(t->dev, &u, t->s.params, t->s.reduce, t->s.momentum, count, e));
    TRY(ops->update_stats(t->dev, t->s.stats, tail, t->p->n_stats, 0.1, count, e));
    t->s.version++;
    return 0;
}

static int open_all(struct steps *t, char **argv, struct err *e)
{
    const int side = atoi(argv[3]);
    struct model_options m = {.arch = argv[2],
                              .classes = atoi(argv[4]),
                              .input = input_pictures(3, side, side, (float[4]){0.485F, 0.456F, 0.406F},
                                                      (float[4]){0.229F, 0.224F, 0.225F, 1})};
    struct model_facts facts;
    char *text, device[16];
    const size_t name = strcspn(argv[1], "-");
    snprintf(device, sizeof device, "%.*s", (int)name, argv[1]);
    t->batch = atoi(argv[5]);
    t->steps = atoi(argv[6]);
    t->clip = atof(argv[8]);
    TRY(model_text(&text, argv[2], NET_TORCH, false, e));
    m.text = text;
    TRY(model_facts(argv[2], text, &facts, e));
    if (facts.tokens)
        m.input = (struct input){.rows = INPUT_TOKENS, .length = abs(side), .vocabulary = m.classes};
    m.whole_logits = side < 0;
    TRY(model_build(&t->p, &m, e));
    free(text);
    TRY(device_open(&t->dev, device, &(struct device_options){.threads = atoi(argv[7])}, e));
    TRY(ownership_init_alone(&t->own, t->p, e));
    TRY(state_init(&t->s, t->dev, t->p, &t->own, &(struct state_options){0}, e));
    struct plan_options o = {.batch = t->batch,
                             .training = true,
                             .compute = argv[1][name] ? DT_BF16 : t->s.real,
                             .emulate = argv[1][name] && !t->dev->ops->native(t->dev, DT_BF16, HALF_STORED),
                             .params = t->s.params,
                             .stats = t->s.stats,
                             .reduce = t->s.reduce};
    TRY(t->dev->ops->plan(t->dev, t->p, &o, &t->plan, e));
    const size_t n = (size_t)t->batch * (size_t)t->steps, image = input_row_bytes(&t->p->input),
                 labels = n * input_row_labels(&t->p->input);
    t->images = need(n, image);
    t->labels = need(labels, sizeof *t->labels);
    t->weights = need((size_t)t->batch, sizeof *t->weights);
    for (int i = 0; i < t->batch; i++)
        t->weights[i] = 1;
    t->out = need((size_t)t->p->nparams * 2 + 2, sizeof *t->out);
    TRY(read_file(argv[9], "images", t->images, n * image, e));
    TRY(read_file(argv[9], "labels", t->labels, labels * sizeof *t->labels, e));
    return load_weights(t, argv[9], e);
}

static int run_all(struct steps *t, char **argv, struct err *e)
{
    char path[4096];
    TRY(open_all(t, argv, e));
    double *losses = need((size_t)t->steps, sizeof *losses);
    for (int k = 0; k < t->steps; k++)
        TRY(step(t, k, &losses[k], e));
    keep_values(t, "losses", losses, t->steps);
    for (int i = 0; i < t->p->nparams; i++)
        TRY(keep(t, "", &t->p->params[i], t->p->params[i].role == PARAM_TRAIN ? t->s.params : t->s.stats, e));
    snprintf(path, sizeof path, "%s/%s.safetensors", argv[9], argv[1]);
    return safetensors_write(path, t->out, t->n_out, NULL, e);
}

int main(int argc, char **argv)
{
    struct err e = {0};
    struct steps t = {0};
    if (argc != 10) {
        fprintf(stderr, "usage: steps DEVICE ARCH|FILE.net SIZE CLASSES BATCH STEPS THREADS CLIP DIR\n");
        return 2;
    }
    int rc = run_all(&t, argv, &e); /* the process ends here: nothing is given back */
    if (rc < 0)
        fprintf(stderr, "steps: %s\n", e.text);
    return rc < 0;
}
