#include "tests/worker/device/cuda/card.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "tests/must.h"
#include "worker/device/cuda/plan.h"

static void hear(void *arg, const char *line, size_t n)
{
    struct card *c = arg;
    const size_t used = strlen(c->said);
    snprintf(c->said + used, sizeof c->said - used, "%.*s", (int)n, line);
}

void card_hear(struct card *c)
{
    log_redirect(c ? hear : NULL, c);
}

int count_words(const char *text, const char *word)
{
    int n = 0;
    for (; (text = strstr(text, word)); text += strlen(word))
        n++;
    return n;
}

void card_open(struct card *c, struct program *p, const struct fake_options *fake, const struct cuda_options *o,
               const struct cudnn_options *dnn)
{
    struct fake_options of_gpu = *fake;
    struct cudnn *of_dnn = NULL;
    *c = (struct card){.p = p};
    of_gpu.at_close = &c->counts;
    assert_int_equal(0, fake_gpu_open(&c->gpu, &of_gpu));
    card_hear(c);
    if (dnn)
        MUST(cudnn_open(&of_dnn, dnn, e));
    card_hear(NULL);
    MUST(cuda_open_on(&c->d, c->gpu, of_dnn, o, e));
    ((struct cuda *)c->d)->tell_ms = INT64_MAX / 2000000; /* how slow this machine is belongs to no test */
    arenas_open(&c->at, c->d, p);
    fake_gpu_wait(c->gpu, NULL);
    if (!fake->idle)
        arenas_fill(&c->at, p);
}

static void make_batch(struct card *c, int n)
{
    const size_t bytes = (size_t)n * input_row_bytes(&c->p->input);
    assert_true(n <= CARD_BATCH_MAX);
    free(c->images);
    c->images = malloc(bytes);
    noise_fill(c->images, bytes);
    for (int i = 0; i < n; i++) {
        c->labels[i] = i % CARD_CLASSES;
        c->weights[i] = 1;
    }
    c->run = (struct run_args){
        .batch = {.rows = c->images, .labels = c->labels, .weights = c->weights}, .grad_scale = 1, .params_version = 1};
}

int card_plan(struct card *c, int batch, enum dtype type, enum memory_format format, struct err *e)
{
    const struct plan_options o = {.batch = batch,
                                   .training = true,
                                   .compute = type,
                                   .format = format,
                                   .params = c->at.params,
                                   .stats = c->at.stats,
                                   .reduce = c->at.reduce};
    make_batch(c, batch);
    card_hear(c);
    const int rc = c->d->ops->plan(c->d, c->p, &o, &c->plan, e);
    card_hear(NULL);
    return rc;
}

int card_run(struct card *c, struct err *e)
{
    c->run.params_version++;
    card_hear(c);
    const int rc = c->d->ops->run(c->plan, &c->run, e);
    card_hear(NULL);
    return rc;
}

void card_close(struct card *c)
{
    if (c->plan)
        c->d->ops->plan_close(c->plan);
    arenas_close(&c->at, c->d);
    c->d->ops->close(c->d);
    program_destroy(c->p);
    free(c->images);
    assert_given_back(&c->counts);
}

int card_graphs(const struct card *c, enum cudnn_pattern pattern)
{
    const struct cuda_plan *pl = (const struct cuda_plan *)c->plan;
    int n = 0;
    for (int i = 0; i < pl->nsteps; i++)
        n += pl->steps[i]->kind == STEP_DNN && pl->steps[i]->dnn.pattern == pattern;
    return n;
}

int card_kernels(const struct card *c, enum kernel k)
{
    const struct cuda_plan *pl = (const struct cuda_plan *)c->plan;
    int n = 0;
    for (int i = 0; i < pl->nsteps; i++)
        n += pl->steps[i]->kind == STEP_KERNEL && pl->steps[i]->kernel == k;
    return n;
}

double card_distance(const float *a, const float *b, size_t n)
{
    double d = 0, s = 0;
    for (size_t i = 0; i < n; i++) {
        d += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        s += (double)b[i] * (double)b[i];
    }
    return sqrt(d / s);
}
