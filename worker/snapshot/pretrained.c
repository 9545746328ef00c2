#include "worker/snapshot/pretrained.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "common/base/err.h"
#include "common/base/log.h"
#include "worker/ckpt/weights.h"
#include "worker/comm/comm.h"
#include "worker/program/program.h"
#include "worker/snapshot/snapshot_image.h"
#include "worker/state/state.h"

/* Is this tensor one of the layer that has an output a class? */
static bool is_last_layer(const struct program *p, const char *name)
{
    for (int i = p->nfwd - 1; i >= 0; i--)
        if (p->ops[i].kind == OP_LINEAR)
            return strcmp(p->params[p->ops[i].param[0]].name, name) == 0 ||
                   (p->ops[i].param[1] >= 0 && strcmp(p->params[p->ops[i].param[1]].name, name) == 0);
    return false;
}

static bool same_shape(const struct ckpt_tensor *a, const struct ckpt_tensor *b, int first)
{
    bool same = a->ndim == b->ndim;
    for (int i = first; same && i < a->ndim; i++)
        same = a->shape[i] == b->shape[i];
    return same;
}

static int take_one(struct weights *w, const struct state *s, const struct ckpt_tensor *want, bool other_classes,
                    struct err *e)
{
    char a[CKPT_SHAPE_LEN], b[CKPT_SHAPE_LEN];
    size_t i = 0;
    const struct ckpt_tensor *have = weights_find(w, want->name, &i);
    if (want->dtype == DT_I64) /* num_batches_tracked */
        return 0;
    if (!have)
        return err_set(e, ERR_MISMATCH, "it has no tensor '%s'", want->name);
    if (same_shape(have, want, 0))
        return weights_read_real(w, i, s->real, (void *)(uintptr_t)want->data, e);
    ckpt_tensor_shape(have, a, sizeof a);
    ckpt_tensor_shape(want, b, sizeof b);
    if (!other_classes || !is_last_layer(s->program, want->name) || !same_shape(have, want, 1))
        return err_set(e, ERR_MISMATCH, "its tensor '%s' is %s instead of %s", want->name, a, b);
    log_warn("pretrained", "'%s' is %s for another number of classes and stays at its initial value, %s", want->name, a,
             b);
    return 0;
}

static bool is_wanted(const struct image *im, const char *name)
{
    for (size_t i = 0; i < im->n_model; i++)
        if (strcmp(im->model[i].name, name) == 0)
            return true;
    return false;
}

static int take_all(struct image *im, const struct state *s, struct weights *w, bool other_classes, struct err *e)
{
    for (size_t i = 0; i < im->n_model; i++)
        TRY(take_one(w, s, &im->model[i], other_classes, e));
    for (size_t i = 0; i < weights_count(w); i++)
        if (!is_wanted(im, weights_at(w, i)->name))
            log_warn("pretrained", "tensor '%s' is no part of this model and is left out", weights_at(w, i)->name);
    return 0;
}

static void begin_averages(struct image *im, const struct state *s)
{
    if (im->ema_params)
        memcpy(im->ema_params, im->params, state_bytes(s, s->program->n_train));
    if (im->ema_stats)
        memcpy(im->ema_stats, im->stats, state_bytes(s, s->program->n_stats));
}

int pretrained_apply(struct state *s, struct weights *w, const char *path, bool other_classes, struct err *e)
{
    struct image im;
    TRY(image_init(&im, s, e));
    int rc = image_download(&im, s, e);
    if (rc == 0)
        rc = take_all(&im, s, w, other_classes, e);
    begin_averages(&im, s);
    if (rc == 0)
        rc = image_upload(&im, s, e);
    image_finish(&im);
    return rc == ERR_MISMATCH ? err_wrap(e, "%s", path) : rc; /* other errors name the file themselves */
}

static int read_here(struct state *s, const char *path, struct err *e)
{
    struct weights *w;
    TRY(weights_open(&w, path, e));
    int rc = pretrained_apply(s, w, path, true, e);
    weights_close(w);
    return rc;
}

int pretrained_load(struct state *s, struct comm *c, const char *path, struct err *e)
{
    struct image im;
    int rc = c->rank == 0 ? read_here(s, path, e) : 0;
    if (rc < 0)
        err_wrap(e, "--pretrained");
    TRY(comm_share(c, 0, rc, path, NULL, e));
    TRY(image_init(&im, s, e));
    rc = image_download(&im, s, e);
    if (rc == 0)
        rc = image_share(&im, s, c, 0, e);
    if (rc == 0)
        rc = image_upload(&im, s, e);
    image_finish(&im);
    return rc;
}
