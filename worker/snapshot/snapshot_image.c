#include "worker/snapshot/snapshot_image.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "worker/comm/comm.h"
#include "worker/device/device.h"
#include "worker/program/program.h"
#include "worker/state/state.h"

void image_finish(struct image *im)
{
    free(im->params);
    free(im->momentum);
    free(im->second);
    free(im->ema_params);
    free(im->ema_stats);
    free(im->stats);
    free(im->model);
    free(im->train);
}

static void add_tensor(struct ckpt_tensor *t, const struct state *s, const char *prefix, const struct param *p,
                       const void *arena)
{
    *t = (struct ckpt_tensor){.dtype = s->real, .ndim = p->ndim};
    snprintf(t->name, sizeof t->name, "%s%s", prefix, p->name);
    memcpy(t->shape, p->shape, sizeof t->shape);
    t->data = (const char *)arena + state_bytes(s, p->offset);
}

/* torchvision keeps a step counter beside every running mean. */
static bool counter_name(const char *mean_name, char *out, size_t cap)
{
    const char *tail = strstr(mean_name, "running_mean");
    if (tail)
        snprintf(out, cap, "%.*snum_batches_tracked", (int)(tail - mean_name), mean_name);
    return tail != NULL;
}

static int image_alloc_all(struct image *im, const struct state *s, struct err *e)
{
    const struct program *p = s->program;
    const size_t params = state_bytes(s, p->n_train), stats = state_bytes(s, p->n_stats + 1);
    im->params = calloc(1, params);
    im->momentum = calloc(1, params);
    im->stats = calloc(1, stats);
    im->second = s->second ? calloc(1, params) : NULL;
    im->ema_params = s->ema_params ? calloc(1, params) : NULL;
    im->ema_stats = s->ema_stats ? calloc(1, stats) : NULL;
    im->model = calloc((size_t)p->nparams * 2, sizeof *im->model);
    im->train = calloc((size_t)p->nparams * 3, sizeof *im->train);
    if (im->params && im->momentum && im->stats && im->model && im->train && !im->second == !s->second &&
        !im->ema_params == !s->ema_params && !im->ema_stats == !s->ema_stats)
        return 0;
    image_finish(im);
    return err_errno(e, ENOMEM, "host copy of the training state");
}

/* What train.safetensors holds: the optimizer's moments first, then averages. */
static void list_train(struct image *im, const struct state *s)
{
    const struct program *p = s->program;
    for (int i = 0; i < p->nparams; i++)
        if (p->params[i].role == PARAM_TRAIN)
            add_tensor(&im->train[im->n_train++], s, "momentum.", &p->params[i], im->momentum);
    for (int i = 0; i < p->nparams && im->second; i++)
        if (p->params[i].role == PARAM_TRAIN)
            add_tensor(&im->train[im->n_train++], s, "second.", &p->params[i], im->second);
    im->n_moments = im->n_train;
    for (int i = 0; i < p->nparams && im->ema_params; i++)
        add_tensor(&im->train[im->n_train++], s, "ema.", &p->params[i],
                   p->params[i].role == PARAM_TRAIN ? im->ema_params : im->ema_stats);
}

int image_init(struct image *im, const struct state *s, struct err *e)
{
    const struct program *p = s->program;
    *im = (struct image){.count = p->n_train, .real = s->real};
    TRY(image_alloc_all(im, s, e));
    list_train(im, s);
    for (int i = 0; i < p->nparams; i++) {
        const struct param *q = &p->params[i];
        add_tensor(&im->model[im->n_model++], s, "", q, q->role == PARAM_TRAIN ? im->params : im->stats);
        struct ckpt_tensor *counter = &im->model[im->n_model];
        if (q->role == PARAM_STAT && counter_name(q->name, counter->name, sizeof counter->name)) {
            counter->dtype = DT_I64;
            counter->data = &im->updates;
            im->n_model++;
        }
    }
    return 0;
}

void image_arenas(const struct image *im, const struct state *s, struct arena out[ARENAS])
{
    const size_t params = state_bytes(s, s->program->n_train), stats = state_bytes(s, s->program->n_stats);
    out[0] = (struct arena){im->params, s->params, params};
    out[1] = (struct arena){im->momentum, s->momentum, params};
    out[2] = (struct arena){im->stats, s->stats, stats};
    out[3] = (struct arena){im->second, s->second, im->second ? params : 0};
    out[4] = (struct arena){im->ema_params, s->ema_params, im->ema_params ? params : 0};
    out[5] = (struct arena){im->ema_stats, s->ema_stats, im->ema_stats ? stats : 0};
}

/* After a blow-up the loss is still a number for one step while the parameters are not. */
int image_check_finite(const struct image *im, struct err *e)
{
    for (size_t i = 0; i < im->count; i++)
        if (!isfinite(im->real == DT_F64 ? ((const double *)im->params)[i] : ((const float *)im->params)[i]))
            return err_set(e, ERR_DIVERGED, "no checkpoint is written: a parameter is not finite");
    return 0;
}

int image_download(struct image *im, const struct state *s, struct err *e)
{
    struct arena arena[ARENAS];
    image_arenas(im, s, arena);
    for (int i = 0; i < ARENAS; i++)
        TRY(s->device->ops->download(s->device, arena[i].host, arena[i].device, arena[i].bytes, e));
    return 0;
}

int image_upload(const struct image *im, struct state *s, struct err *e)
{
    struct arena arena[ARENAS];
    image_arenas(im, s, arena);
    for (int i = 0; i < ARENAS; i++)
        TRY(s->device->ops->upload(s->device, arena[i].device, arena[i].host, arena[i].bytes, e));
    s->version++;
    return 0;
}

int image_share(struct image *im, const struct state *s, struct comm *c, int root, struct err *e)
{
    struct arena arena[ARENAS];
    image_arenas(im, s, arena);
    for (int i = 0; i < ARENAS; i++)
        if (arena[i].bytes)
            TRY(c->ops->broadcast(c, COMM_CONTROL, arena[i].host, arena[i].bytes, root, NULL, e));
    return 0;
}
