#include "worker/snapshot.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/err.h"
#include "common/json.h"
#include "common/log.h"
#include "worker/ckpt/ckpt.h"
#include "worker/comm/comm.h"
#include "worker/config.h"
#include "worker/device/device.h"
#include "worker/optim/schedule.h"
#include "worker/program/program.h"
#include "worker/state.h"

#define META_MAX (64 << 20) /* bytes of a manifest that another rank may announce */

/* Host copies of the arenas and the list of tensors that lie in them. */
struct image {
    void *params, *stats, *momentum;
    void *second, *ema_params, *ema_stats; /* NULL where the state has none */
    struct ckpt_tensor *model, *train;
    size_t n_model, n_train;
    size_t n_moments; /* of train: the optimizer's; averages follow */
    int64_t updates;  /* num_batches_tracked points here */
};

static void image_finish(struct image *im)
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

static int image_init(struct image *im, const struct state *s, struct err *e)
{
    const struct program *p = s->program;
    *im = (struct image){0};
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

struct arena {
    void *host, *device;
    size_t bytes;
};

enum { ARENAS = 6 };

static void image_arenas(const struct image *im, const struct state *s, struct arena out[ARENAS])
{
    const size_t params = state_bytes(s, s->program->n_train), stats = state_bytes(s, s->program->n_stats);
    out[0] = (struct arena){im->params, s->params, params};
    out[1] = (struct arena){im->momentum, s->momentum, params};
    out[2] = (struct arena){im->stats, s->stats, stats};
    out[3] = (struct arena){im->second, s->second, im->second ? params : 0};
    out[4] = (struct arena){im->ema_params, s->ema_params, im->ema_params ? params : 0};
    out[5] = (struct arena){im->ema_stats, s->ema_stats, im->ema_stats ? stats : 0};
}

/* Members of the manifest that are plain numbers: written, read and compared from this list. */
#define POSITION_FIELDS(X)                                                                                             \
    X(updates)                                                                                                         \
    X(epoch)                                                                                                           \
    X(step)                                                                                                            \
    X(epoch_loss)                                                                                                      \
    X(epoch_top1)                                                                                                      \
    X(epoch_count)                                                                                                     \
    X(epoch_seconds)                                                                                                   \
    X(seconds)
#define FIXED_FIELDS(X)                                                                                                \
    X(num_labels)                                                                                                      \
    X(image_size)                                                                                                      \
    X(channels)                                                                                                        \
    X(seed)
#define NOTED_FIELDS(X)                                                                                                \
    X(batch)                                                                                                           \
    X(world)                                                                                                           \
    X(threads)                                                                                                         \
    X(train_images)

/* Options that may change between runs of one training, told when they do. */
#define NOTED_OPTIONS(X)                                                                                               \
    X("num-epochs", num_epochs)                                                                                        \
    X("max-steps", max_steps)                                                                                          \
    X("base-learning-rate", base_lr)                                                                                   \
    X("momentum", momentum)                                                                                            \
    X("weight-decay", weight_decay)                                                                                    \
    X("beta2", beta2)                                                                                                  \
    X("adam-eps", adam_eps)                                                                                            \
    X("lars-eta", lars_eta)                                                                                            \
    X("bn-decay", bn_decay)                                                                                            \
    X("clip-grad-norm", clip_grad_norm)                                                                                \
    X("label-smoothing", label_smoothing)                                                                              \
    X("ema", ema)                                                                                                      \
    X("accumulate", accumulate)                                                                                        \
    X("lr-scale", lr_scale)                                                                                            \
    X("lr-power", lr_power)                                                                                            \
    X("lr-step", lr_step_epochs)                                                                                       \
    X("lr-gamma", lr_gamma)                                                                                            \
    X("warmup-epochs", warmup_epochs)                                                                                  \
    X("crop-scale MIN", crop_scale.min)                                                                                \
    X("crop-scale MAX", crop_scale.max)                                                                                \
    X("sync-bn", sync_bn)

static const char *policy_name(const struct snapshot_identity *id)
{
    return schedule_policy_name((enum lr_policy)id->cfg->lr_policy);
}

/* Integers above 2^53 do not occur (seeds are limited by the option table), so JSON numbers are exact. */
static cJSON *make_meta(const struct position *at, const struct snapshot_identity *id)
{
    cJSON *m = cJSON_CreateObject();
    cJSON_AddStringToObject(m, "arch", id->arch);
    cJSON_AddStringToObject(m, "device", id->device);
    cJSON_AddStringToObject(m, "amp", id->amp);
    cJSON_AddStringToObject(m, "optimizer", id->optimizer);
    cJSON_AddStringToObject(m, "run_id", id->run_id);
#define X(f) cJSON_AddNumberToObject(m, #f, (double)id->f);
    FIXED_FIELDS(X)
    NOTED_FIELDS(X)
#undef X
#define X(f) cJSON_AddNumberToObject(m, #f, (double)at->f);
    POSITION_FIELDS(X)
#undef X
    cJSON *options = cJSON_AddObjectToObject(m, "options");
#define X(name, f) cJSON_AddNumberToObject(options, name, (double)id->cfg->f);
    NOTED_OPTIONS(X)
#undef X
    cJSON_AddStringToObject(options, "lr-policy", policy_name(id));
    cJSON *classes = cJSON_AddArrayToObject(m, "classes");
    for (int i = 0; i < id->nclasses; i++)
        cJSON_AddItemToArray(classes, cJSON_CreateString(id->classes[i]));
    return m;
}

/* After a blow-up the loss is still a number for one step while the parameters are not. */
static int check_finite(const struct image *im, const struct state *s, struct err *e)
{
    for (size_t i = 0; i < s->program->n_train; i++)
        if (!isfinite(s->real == DT_F64 ? ((const double *)im->params)[i] : ((const float *)im->params)[i]))
            return err_set(e, ERR_DIVERGED, "no checkpoint is written: a parameter is not finite");
    return 0;
}

int snapshot_save(struct state *s, const char *dir, const struct position *at, const struct snapshot_identity *id,
                  int keep, struct err *e)
{
    struct image im;
    TRY(image_init(&im, s, e));
    struct arena arena[ARENAS];
    image_arenas(&im, s, arena);
    im.updates = at->updates;
    cJSON *meta = make_meta(at, id);
    int rc = 0;
    for (int i = 0; i < ARENAS && rc == 0; i++)
        rc = s->device->ops->download(s->device, arena[i].host, arena[i].device, arena[i].bytes, e);
    if (rc == 0)
        rc = check_finite(&im, s, e);
    if (rc == 0)
        rc = ckpt_save(dir, at->updates, im.model, im.n_model, im.train, im.n_train, meta, keep, e);
    cJSON_Delete(meta);
    image_finish(&im);
    return rc;
}

static int check_classes(const cJSON *meta, const struct snapshot_identity *id, struct err *e)
{
    const cJSON *classes = cJSON_GetObjectItemCaseSensitive(meta, "classes");
    if (cJSON_GetArraySize(classes) != id->nclasses)
        return err_set(e, ERR_MISMATCH, "the checkpoint was trained on %d classes, the training set has %d",
                       cJSON_GetArraySize(classes), id->nclasses);
    for (int i = 0; i < id->nclasses; i++) {
        const char *name = cJSON_GetStringValue(cJSON_GetArrayItem(classes, i));
        if (!name || strcmp(name, id->classes[i]) != 0)
            return err_set(e, ERR_MISMATCH, "class %d is '%s' in the checkpoint and '%s' in the training set", i,
                           name ? name : "?", id->classes[i]);
    }
    return 0;
}

static void tell_options(const cJSON *meta, const struct snapshot_identity *id)
{
    const struct train_config *cfg = id->cfg;
    const char *policy;
    const cJSON *options = cJSON_GetObjectItemCaseSensitive(meta, "options");
    double was;
#define X(name, f)                                                                                                     \
    if (json_f64(options, name, &was, NULL) == 0 && was != (double)cfg->f)                                             \
        log_warn("resume", "--" name " was %g and is now %g", was, (double)cfg->f);
    NOTED_OPTIONS(X)
#undef X
    if (json_str(options, "lr-policy", &policy, NULL) == 0 && strcmp(policy, policy_name(id)) != 0)
        log_warn("resume", "--lr-policy was %s and is now %s", policy, policy_name(id));
}

static bool same_optimizer(const cJSON *meta, const struct snapshot_identity *id)
{
    const char *was = "sgd";
    json_str(meta, "optimizer", &was, NULL);
    return strcmp(was, id->optimizer) == 0;
}

static int check_identity(const cJSON *meta, const struct snapshot_identity *id, bool tell, struct err *e)
{
    const char *text;
    int64_t value;
    TRY(json_str(meta, "arch", &text, e));
    if (strcmp(text, id->arch) != 0)
        return err_set(e, ERR_MISMATCH, "the checkpoint is of arch %s, this run of %s", text, id->arch);
#define X(f)                                                                                                           \
    TRY(json_i64(meta, #f, &value, e));                                                                                \
    if (value != id->f)                                                                                                \
        return err_set(e, ERR_MISMATCH, "the checkpoint has " #f " %lld, this run %lld", (long long)value,             \
                       (long long)id->f);
    FIXED_FIELDS(X)
#undef X
    TRY(check_classes(meta, id, e));
    if (!tell)
        return 0;
#define X(f)                                                                                                           \
    TRY(json_i64(meta, #f, &value, e));                                                                                \
    if (value != id->f)                                                                                                \
        log_warn("resume", #f " was %lld and is now %lld: results may differ in their last bits or more",              \
                 (long long)value, (long long)id->f);
    NOTED_FIELDS(X)
#undef X
    TRY(json_str(meta, "device", &text, e));
    if (strcmp(text, id->device) != 0)
        log_warn("resume", "the device was '%s' and is now '%s': results may differ in their last bits", text,
                 id->device);
    TRY(json_str(meta, "amp", &text, e));
    if (strcmp(text, id->amp) != 0)
        log_warn("resume", "precision was %s and is now %s", text, id->amp);
    if (!same_optimizer(meta, id))
        log_warn("resume", "the optimizer is %s now and was another: it begins without momentum", id->optimizer);
    tell_options(meta, id);
    return 0;
}

static int read_position(const cJSON *meta, struct position *at, struct err *e)
{
    double v;
#define X(f)                                                                                                           \
    TRY(json_f64(meta, #f, &v, e));                                                                                    \
    at->f = (__typeof__(at->f))v;
    POSITION_FIELDS(X)
#undef X
    if (at->updates < 0 || at->epoch < 0 || at->step < 0)
        return err_set(e, ERR_CORRUPT, "the manifest's position is negative");
    return 0;
}

/* Another optimizer's moments mean nothing to ours, which begins with none; an average that was not kept begins with the weights. */
static int read_train(struct image *im, const struct state *s, const struct snapshot_identity *id, struct ckpt *c,
                      struct err *e)
{
    const bool moments = same_optimizer(ckpt_meta(c), id);
    double ema = 0;
    json_f64(cJSON_GetObjectItemCaseSensitive(ckpt_meta(c), "options"), "ema", &ema, NULL);
    for (size_t i = moments ? 0 : im->n_moments; i < (ema > 0 ? im->n_train : im->n_moments); i++)
        TRY(ckpt_read(c, "train", &im->train[i], (void *)(uintptr_t)im->train[i].data, e));
    if (im->ema_params && ema <= 0) {
        memcpy(im->ema_params, im->params, state_bytes(s, s->program->n_train));
        memcpy(im->ema_stats, im->stats, state_bytes(s, s->program->n_stats));
    }
    return 0;
}

/* The rank that reads: fill im and return the manifest's meta as text (malloc'ed). */
static int read_all(struct image *im, const struct state *s, const char *dir, int64_t step,
                    const struct snapshot_identity *id, char **ret_meta, struct err *e)
{
    struct ckpt *c;
    TRY(ckpt_open(&c, dir, step, e));
    int rc = check_identity(ckpt_meta(c), id, false, e);
    for (size_t i = 0; i < im->n_model && rc == 0; i++)
        rc = ckpt_read(c, "model", &im->model[i], (void *)(uintptr_t)im->model[i].data, e);
    if (rc == 0)
        rc = read_train(im, s, id, c, e);
    if (rc == 0) {
        *ret_meta = cJSON_PrintUnformatted(ckpt_meta(c));
        if (!*ret_meta)
            rc = err_errno(e, ENOMEM, "manifest");
    }
    ckpt_close(c);
    return rc;
}

/* Rank of the newest checkpoint seen by anybody; *step is -1 if there is none. */
static int find_source(struct comm *c, const char *dir, int *ret_rank, int64_t *ret_step, struct err *e)
{
    int64_t mine = -1, *all = calloc((size_t)c->world, sizeof *all);
    if (!all)
        return err_errno(e, ENOMEM, "resume");
    int rc = ckpt_latest(dir, &mine, e);
    if (rc < 0)
        mine = -2; /* the others must not wait for us: tell them */
    struct err ce;
    int rc2 = c->ops->all_gather(c, COMM_CONTROL, &mine, all, sizeof mine, NULL, &ce);
    *ret_step = -1;
    *ret_rank = 0;
    for (int r = 0; rc >= 0 && rc2 >= 0 && r < c->world; r++) {
        if (all[r] == -2)
            rc = err_set(e, -ECANCELED, "rank %d cannot use its checkpoint folder", r);
        if (all[r] > *ret_step) {
            *ret_step = all[r];
            *ret_rank = r;
        }
    }
    free(all);
    if (rc >= 0 && rc2 < 0) {
        if (e)
            *e = ce;
        return rc2;
    }
    return rc;
}

/* The source announces its result and the length of the manifest, then both travel. meta is malloc'ed on every rank. */
static int share(struct comm *c, int source, int64_t read_rc, struct image *im, const struct state *s, char **meta,
                 struct err *e)
{
    int64_t head[2] = {read_rc, *meta ? (int64_t)strlen(*meta) : 0};
    TRY(c->ops->broadcast(c, COMM_CONTROL, head, sizeof head, source, NULL, e));
    if (head[0] < 0)
        return c->rank == source ? (int)head[0]
                                 : err_set(e, -ECANCELED, "rank %d could not load the checkpoint", source);
    if (head[1] <= 0 || head[1] > META_MAX)
        return err_set(e, -EPROTO, "rank %d announces a manifest of %lld bytes", source, (long long)head[1]);
    if (c->rank != source) {
        *meta = calloc(1, (size_t)head[1] + 1);
        if (!*meta)
            return err_errno(e, ENOMEM, "manifest");
    }
    TRY(c->ops->broadcast(c, COMM_CONTROL, *meta, (size_t)head[1], source, NULL, e));
    struct arena arena[ARENAS];
    image_arenas(im, s, arena);
    for (int i = 0; i < ARENAS; i++)
        if (arena[i].bytes)
            TRY(c->ops->broadcast(c, COMM_CONTROL, arena[i].host, arena[i].bytes, source, NULL, e));
    return 0;
}

/* The place in the epoch is a number of samples: steps of the old batch as steps of ours. */
static int64_t same_place(int64_t step, int64_t old_batch, const struct snapshot_identity *id)
{
    if (old_batch == id->batch || id->batch <= 0)
        return step;
    int64_t samples = step * old_batch;
    return samples >= id->train_images ? (id->train_images + id->batch - 1) / id->batch : samples / id->batch;
}

static int take(struct state *s, const struct image *im, const char *text, const struct snapshot_identity *id,
                bool tell, struct position *at, struct err *e)
{
    cJSON *meta = cJSON_Parse(text);
    if (!meta)
        return err_set(e, ERR_CORRUPT, "the manifest is not JSON");
    struct position found = {0};
    int rc = check_identity(meta, id, tell, e);
    if (rc == 0)
        rc = read_position(meta, &found, e);
    struct arena arena[ARENAS];
    image_arenas(im, s, arena);
    for (int i = 0; i < ARENAS && rc == 0; i++)
        rc = s->device->ops->upload(s->device, arena[i].device, arena[i].host, arena[i].bytes, e);
    if (rc == 0) {
        int64_t batch = id->batch;
        json_i64(meta, "batch", &batch, NULL);
        found.step = same_place(found.step, batch, id);
        *at = found;
        s->version++;
    }
    cJSON_Delete(meta);
    return rc;
}

int snapshot_resume(struct state *s, struct comm *c, const char *dir, const struct snapshot_identity *id,
                    struct position *at, struct err *e)
{
    int source = 0;
    int64_t step = -1;
    TRY(find_source(c, dir, &source, &step, e));
    if (step < 0)
        return 0;
    struct image im;
    char *meta = NULL;
    TRY(image_init(&im, s, e));
    int rc = c->rank == source ? read_all(&im, s, dir, step, id, &meta, e) : 0;
    rc = share(c, source, rc, &im, s, &meta, e);
    if (rc == 0)
        rc = take(s, &im, meta, id, c->rank == 0, at, e);
    free(meta);
    image_finish(&im);
    return rc < 0 ? err_wrap(e, "resume from %s, step %lld", dir, (long long)step) : 1;
}
