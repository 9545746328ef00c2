#include "worker/snapshot/snapshot.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "common/json/json.h"
#include "worker/comm/comm.h"
#include "worker/config/config.h"
#include "worker/program/program.h"
#include "worker/snapshot/snapshot_image.h"
#include "worker/snapshot/snapshot_meta.h"
#include "worker/snapshot/snapshot_order.h"
#include "worker/state/state.h"

/* Another optimizer's moments mean nothing to ours, which begins with none; an average that was not kept begins with
 * the weights. */
static int read_train(struct image *im, const struct state *s, const struct snapshot_identity *id, struct ckpt *c,
                      struct err *e)
{
    const bool moments = meta_same_optimizer(ckpt_meta(c), id);
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
    int rc = meta_check(ckpt_meta(c), id, false, e);
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

struct found {
    char dir[PATH_MAX];
    int64_t step; /* that this rank can offer: -1 none, -2 an error that the others must hear of */
    struct err why;
};

static bool read_whether_saved_by(const char *dir, int64_t step, const char *run_id)
{
    struct ckpt *c;
    const char *writer = "";
    if (ckpt_open(&c, dir, step, NULL) < 0)
        return false;
    json_str(ckpt_meta(c), "run_id", &writer, NULL);
    const bool same = *run_id && strcmp(writer, run_id) == 0;
    ckpt_close(c);
    return same;
}

static void look_for_checkpoint(const struct snapshot_source *from, struct found *f)
{
    f->step = -1;
    snprintf(f->dir, sizeof f->dir, "%s", from->path);
    if (from->exact && ckpt_locate(from->path, f->dir, &f->step, &f->why) < 0)
        return;
    int rc = f->step < 0 ? ckpt_latest(f->dir, &f->step, &f->why) : ckpt_check(f->dir, f->step, &f->why);
    if (rc == 0 && f->step >= 0 && from->run_id && !read_whether_saved_by(f->dir, f->step, from->run_id))
        f->step = -1;
    if (rc < 0)
        f->step = -2;
}

/* Rank of the newest checkpoint seen by anybody; *step is -1 if there is none. */
static int find_source(struct comm *c, const struct found *f, int *ret_rank, int64_t *ret_step, struct err *e)
{
    int64_t *all = calloc((size_t)c->world, sizeof *all), mine = f->step;
    if (!all)
        return err_errno(e, ENOMEM, "resume");
    int rc = mine == -2 ? err_set(e, f->why.code, "%s", f->why.text) : 0;
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

static int apply_image(struct state *s, const struct image *im, const char *text, const struct snapshot_identity *id,
                       bool tell, struct position *at, struct err *e)
{
    cJSON *meta = cJSON_Parse(text);
    if (!meta)
        return err_set(e, ERR_CORRUPT, "the manifest is not JSON");
    struct position found = {.lr = -1};
    int rc = meta_check(meta, id, tell, e);
    if (rc == 0)
        rc = meta_position(meta, &found, e);
    if (rc == 0)
        rc = image_upload(im, s, e);
    if (rc == 0) {
        found.step = meta_place(meta, found.step, id);
        *at = found;
        meta_take_scale(meta, id, tell, &s->loss_scale);
        if (!meta_same_optimizer(meta, id)) /* read_train() took no moments */
            at->moments_from = at->updates - s->loss_scale.skipped;
    }
    cJSON_Delete(meta);
    return rc;
}

int snapshot_resume(struct state *s, struct comm *c, const struct snapshot_source *from,
                    const struct snapshot_identity *id, struct position *at, struct err *e)
{
    int source = 0;
    int64_t step = -1;
    struct found f = {0};
    look_for_checkpoint(from, &f);
    TRY(find_source(c, &f, &source, &step, e));
    if (step < 0 && from->exact)
        return err_set(e, ERR_USAGE, "--resume: %s", f.why.text);
    if (step < 0)
        return 0;
    struct image im;
    char *meta = NULL;
    TRY(image_init(&im, s, e));
    int rc = c->rank == source ? read_all(&im, s, f.dir, step, id, &meta, e) : 0;
    rc = comm_share(c, source, rc, "the checkpoint", &meta, e);
    if (rc == 0)
        rc = image_share(&im, s, c, source, e);
    if (rc == 0)
        rc = apply_image(s, &im, meta, id, c->rank == 0, at, e);
    free(meta);
    image_finish(&im);
    return rc < 0 ? err_wrap(e, "resume from %s, step %lld", f.dir, (long long)step) : 1;
}
