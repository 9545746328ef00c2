#include "worker/snapshot/snapshot_image.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "worker/comm/comm.h"
#include "worker/device/device.h"
#include "worker/parallel/ownership.h"
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
    const bool cut = ownership_is_cut(s->own, OWNERSHIP_MOMENTS);
    out[0] = (struct arena){im->params, s->params, params, false};
    out[1] = (struct arena){im->momentum, s->momentum, params, cut};
    out[2] = (struct arena){im->stats, s->stats, stats, false};
    out[3] = (struct arena){im->second, s->second, im->second ? params : 0, cut};
    out[4] = (struct arena){im->ema_params, s->ema_params, im->ema_params ? params : 0, false};
    out[5] = (struct arena){im->ema_stats, s->ema_stats, im->ema_stats ? stats : 0, false};
}

/* After a blow-up the loss is still a number for one step while the parameters are not. */
int image_check_finite(const struct image *im, struct err *e)
{
    for (size_t i = 0; i < im->count; i++)
        if (!isfinite(im->real == DT_F64 ? ((const double *)im->params)[i] : ((const float *)im->params)[i]))
            return err_set(e, ERR_DIVERGED, "no checkpoint is written: a parameter is not finite");
    return 0;
}

/* n elements, down from the device or up to it. */
static int copy_range(const struct state *s, const struct arena *a, size_t on_host, size_t on_device, size_t n,
                      bool down, struct err *e)
{
    char *host = (char *)a->host + state_bytes(s, on_host), *device = (char *)a->device + state_bytes(s, on_device);
    const size_t bytes = state_bytes(s, n);
    return down ? s->device->ops->download(s->device, host, device, bytes, e)
                : s->device->ops->upload(s->device, device, host, bytes, e);
}

static int copy_arena(const struct state *s, const struct arena *a, bool down, struct err *e)
{
    if (!a->cut || a->bytes == 0)
        return copy_range(s, a, 0, 0, a->bytes / state_bytes(s, 1), down, e);
    for (int k = 0; k < s->own->nowned; k++) {
        const struct ownership_range *r = &s->own->owned[k];
        TRY(copy_range(s, a, r->first, r->kept, r->end - r->first, down, e));
    }
    return 0;
}

int image_download(struct image *im, const struct state *s, struct err *e)
{
    struct arena arena[ARENAS];
    image_arenas(im, s, arena);
    for (int i = 0; i < ARENAS; i++)
        TRY(copy_arena(s, &arena[i], true, e));
    return 0;
}

int image_upload(const struct image *im, struct state *s, struct err *e)
{
    struct arena arena[ARENAS];
    image_arenas(im, s, arena);
    for (int i = 0; i < ARENAS; i++)
        TRY(copy_arena(s, &arena[i], false, e));
    s->version++;
    return 0;
}

/* Memory for one piece at a time. */
struct exchange {
    void *mine, *all; /* this rank's part; the piece, where there is no image */
};

/* whole: the arena in the image, NULL: there is none. kept: what this rank has of it, device memory. */
static int collect_piece(const struct state *s, const struct ownership_piece *p, struct comm *c, void *whole,
                         const void *kept, const struct exchange *x, struct err *e)
{
    const struct ownership_range mine = ownership_part(p, ownership_group(s->own, p->group).index);
    const size_t at = ownership_place(s->own, OWNERSHIP_MOMENTS, mine.first), bytes = state_bytes(s, p->part);
    TRY(s->device->ops->download(s->device, x->mine, (const char *)kept + state_bytes(s, at), bytes, e));
    void *all = whole ? (char *)whole + state_bytes(s, p->first) : x->all;
    return c->ops->all_gather(c, COMM_CONTROL, x->mine, all, bytes, NULL, e);
}

static int collect_arena(const struct state *s, struct comm *const groups[LAYOUT_GROUPS], void *whole, const void *kept,
                         const struct exchange *x, struct err *e)
{
    for (int k = 0; k < s->own->npieces; k++) {
        const struct ownership_piece *p = &s->own->pieces[k];
        if (p->part)
            TRY(collect_piece(s, p, groups[p->group], whole, kept, x, e));
    }
    return 0;
}

int image_collect(struct image *im, const struct state *s, struct comm *const groups[LAYOUT_GROUPS], struct err *e)
{
    if (!ownership_is_cut(s->own, OWNERSHIP_MOMENTS))
        return 0;
    const size_t bytes = state_bytes(s, ownership_largest_piece(s->own));
    const struct exchange x = {malloc(bytes), im ? NULL : malloc(bytes)};
    int rc = x.mine && (im || x.all) ? 0 : err_errno(e, ENOMEM, "a piece of the moments");
    if (rc == 0)
        rc = collect_arena(s, groups, im ? im->momentum : NULL, s->momentum, &x, e);
    if (rc == 0 && s->second)
        rc = collect_arena(s, groups, im ? im->second : NULL, s->second, &x, e);
    free(x.mine);
    free(x.all);
    return rc;
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
