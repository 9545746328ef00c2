/* All ranks look at their folders' manifests. The rank with the newest checkpoint shares its manifest, then reads the
 * tensors once and deals them out (deal.h); whether they are damaged is known at the end. If so, all look again,
 * without the one that was damaged: the state is overwritten by the next one. */
#include "worker/snapshot/snapshot.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/base/err.h"
#include "common/base/log.h"
#include "common/json/json.h"
#include "worker/ckpt/ckpt.h"
#include "worker/comm/comm.h"
#include "worker/config/config.h"
#include "worker/program/program.h"
#include "worker/snapshot/deal.h"
#include "worker/snapshot/snapshot_meta.h"
#include "worker/snapshot/snapshot_order.h"
#include "worker/snapshot/stored.h"
#include "worker/state/state.h"

/* A checkpoint that a rank can offer, and what tells whether two ranks mean the same files. */
struct offer {
    int64_t step; /* -1: none, -2: an error that the others must hear of */
    int64_t inode, changed_ns;
};

struct found {
    char dir[PATH_MAX];
    int64_t named; /* a checkpoint that the user named; -1: the newest */
    int64_t below; /* only older ones are offered */
    struct offer mine;
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

static void identify(const char *dir, struct offer *o)
{
    char path[PATH_MAX];
    struct stat st;
    if (snprintf(path, sizeof path, "%s/step-%08lld/manifest.json", dir, (long long)o->step) >= PATH_MAX ||
        stat(path, &st) < 0)
        return;
    o->inode = (int64_t)st.st_ino;
    o->changed_ns = st.st_ctim.tv_sec * 1000000000LL + st.st_ctim.tv_nsec;
}

static void locate(const struct snapshot_source *from, struct found *f)
{
    *f = (struct found){.named = -1, .below = INT64_MAX, .mine = {.step = -1}};
    snprintf(f->dir, sizeof f->dir, "%s", from->path);
    if (from->exact && ckpt_locate(from->path, f->dir, &f->named, &f->why) < 0)
        f->below = 0; /* nothing is there */
}

static void look_for_checkpoint(const struct snapshot_source *from, struct found *f)
{
    f->mine = (struct offer){.step = f->named < f->below ? f->named : -1};
    int rc = 0;
    if (f->named < 0 && f->below > 0)
        rc = ckpt_newest(f->dir, f->below, &f->mine.step, &f->why);
    if (rc == 0 && f->mine.step >= 0 && from->run_id && !read_whether_saved_by(f->dir, f->mine.step, from->run_id))
        f->mine.step = -1;
    if (rc == 0 && f->mine.step >= 0)
        identify(f->dir, &f->mine);
    if (rc < 0)
        f->mine.step = -2;
}

/* Rank of the newest checkpoint seen by anybody, and what it offers; step is -1 if there is none. */
static int find_source(struct comm *c, const struct found *f, int *ret_rank, struct offer *ret, struct err *e)
{
    struct offer *all = calloc((size_t)c->world, sizeof *all), mine = f->mine;
    if (!all)
        return err_errno(e, ENOMEM, "resume");
    int rc = mine.step == -2 ? err_set(e, f->why.code, "%s", f->why.text) : 0;
    struct err ce;
    int rc2 = c->ops->all_gather(c, COMM_CONTROL, &mine, all, sizeof mine, NULL, &ce);
    *ret = (struct offer){.step = -1};
    *ret_rank = 0;
    for (int r = 0; rc >= 0 && rc2 >= 0 && r < c->world; r++) {
        if (all[r].step == -2)
            rc = err_set(e, -ECANCELED, "rank %d cannot use its checkpoint folder", r);
        if (all[r].step > ret->step) {
            *ret = all[r];
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

/* --- one that was found */

struct resumption {
    struct state *state;
    struct comm *comm;
    const struct snapshot_identity *id;
    struct slices slices;
    struct deal *deal;
    int reader;
    struct ckpt *ckpt; /* of the reader */
    cJSON *meta;       /* its manifest's */
    bool moments;      /* are they taken? */
    bool *wanted;      /* [slices.n] */
};

/* An average that was not kept begins with the weights. Returns whether it was kept. */
static bool choose(struct resumption *r)
{
    double ema = 0;
    json_f64(cJSON_GetObjectItemCaseSensitive(r->meta, "options"), "ema", &ema, NULL);
    for (size_t i = 0; i < r->slices.n; i++)
        r->wanted[i] = r->slices.kinds[i] == SLICES_MOMENTS    ? r->moments
                       : r->slices.kinds[i] == SLICES_AVERAGES ? ema > 0
                                                               : true;
    return ema > 0;
}

static int check_tensors(const struct resumption *r, struct err *e)
{
    for (size_t i = 0; i < r->slices.n; i++)
        if (r->wanted[i])
            TRY(stored_check(r->ckpt, &r->slices, i, e));
    return 0;
}

/* The reader's manifest, on all ranks. */
static int share_meta(struct resumption *r, const char *dir, int64_t step, struct err *e)
{
    const bool reads = r->comm->rank == r->reader;
    char *text = NULL;
    int rc = reads ? ckpt_open(&r->ckpt, dir, step, e) : 0;
    if (rc == 0 && reads) {
        text = cJSON_PrintUnformatted(ckpt_meta(r->ckpt));
        rc = text ? meta_check(ckpt_meta(r->ckpt), r->id, false, e) : err_errno(e, ENOMEM, "manifest");
    }
    rc = comm_share(r->comm, r->reader, rc, "the checkpoint", &text, e);
    if (rc == 0 && !(r->meta = cJSON_Parse(text)))
        rc = err_set(e, ERR_CORRUPT, "the manifest is not JSON");
    free(text);
    return rc;
}

/* Another optimizer's moments mean nothing to ours, which begins with none; and so it does if parameters are trained
 * that were frozen: steps of Adam that take others' number for theirs would be too long. */
static int share_moments(struct resumption *r, struct err *e)
{
    const bool same = meta_same_optimizer(r->meta, r->id);
    r->moments = r->ckpt && same && stored_has_moments(r->ckpt, &r->slices);
    if (r->ckpt && same && !r->moments && !r->id->evaluate)
        log_warn("resume", "parameters are trained now that were frozen: the optimizer begins without momentum");
    return r->comm->ops->broadcast(r->comm, COMM_CONTROL, &r->moments, sizeof r->moments, r->reader, NULL, e);
}

/* Returns 1 if the checkpoint turned out to be damaged: on all ranks; *why is the reader's. */
static int load(struct resumption *r, struct err *why, struct err *e)
{
    TRY(share_moments(r, e));
    const bool reads = r->comm->rank == r->reader, averages = !choose(r);
    struct stored from = {0};
    int rc = reads ? check_tensors(r, e) : 0, reading = 0;
    TRY(comm_share(r->comm, r->reader, rc, "the checkpoint", NULL, e));
    if (reads)
        from = stored_checkpoint(r->ckpt, &r->slices);
    const struct deal_load l = {.reader = r->reader,
                                .from = reads ? &from : NULL,
                                .wanted = r->wanted,
                                .averages = averages,
                                .what = "the checkpoint"};
    rc = deal_load(r->deal, &l, &reading, why);
    stored_finish(&from);
    if (reading == ERR_CORRUPT)
        return 1;
    return rc < 0 ? err_set(e, rc, "%s", why->text) : 0;
}

static int take_position(const struct resumption *r, bool tell, struct position *at, struct err *e)
{
    struct state *s = r->state;
    struct position found = {.lr = -1};
    TRY(meta_position(r->meta, &found, e));
    meta_forget_best(r->meta, r->id, &found);
    found.step = meta_place(r->meta, found.step, r->id);
    *at = found;
    meta_take_scale(r->meta, r->id, tell, &s->loss_scale);
    if (!r->moments)
        at->moments_from = at->updates - s->loss_scale.skipped;
    return 0;
}

/* All ranks: 0; 1: it is damaged, *why says how on the rank that read it. */
static int take_up(struct resumption *r, const char *dir, int64_t step, struct position *at, struct err *why,
                   struct err *e)
{
    const bool tell = r->comm->rank == 0;
    struct position checked;
    int rc = share_meta(r, dir, step, e);
    if (rc == 0)
        rc = meta_check(r->meta, r->id, false, e);
    if (rc == 0)
        rc = meta_position(r->meta, &checked, e);
    if (rc == 0)
        rc = load(r, why, e);
    if (rc == 0 && tell)
        rc = meta_check(r->meta, r->id, true, e);
    if (rc == 0)
        rc = take_position(r, tell, at, e);
    ckpt_close(r->ckpt);
    cJSON_Delete(r->meta);
    r->ckpt = NULL;
    r->meta = NULL;
    return rc;
}

/* Every rank that has the same files passes them over. */
static void pass_over(struct found *f, const struct offer *damaged)
{
    if (f->mine.step == damaged->step && f->mine.inode == damaged->inode && f->mine.changed_ns == damaged->changed_ns)
        f->below = damaged->step;
}

/* 1: taken up, 0: there is none. */
static int try_newest_first(struct resumption *r, const struct snapshot_source *from, struct found *f,
                            struct position *at, struct err *e)
{
    struct offer best = {.step = -1};
    struct err first = {0};
    int damaged = 0;
    for (;;) {
        struct err why = {0};
        look_for_checkpoint(from, f);
        TRY(find_source(r->comm, f, &r->reader, &best, e));
        if (best.step < 0)
            break;
        const int rc = take_up(r, f->dir, best.step, at, &why, e);
        if (rc < 0)
            return err_wrap(e, "resume from %s, step %lld", f->dir, (long long)best.step);
        if (rc == 0)
            return 1;
        if (r->comm->rank == r->reader)
            log_warn("ckpt", "the checkpoint of step %lld is passed over: %s", (long long)best.step, why.text);
        if (damaged++ == 0)
            first = why;
        pass_over(f, &best);
    }
    if (damaged)
        return err_set(e, ERR_CORRUPT, "%s holds no sound checkpoint, only %d damaged: %.350s", f->dir, damaged,
                       first.text);
    return from->exact ? err_set(e, ERR_USAGE, "--resume: %s", f->why.text) : 0;
}

int snapshot_resume(struct state *s, struct comm *c, const struct snapshot_source *from,
                    const struct snapshot_identity *id, struct position *at, struct err *e)
{
    struct resumption r = {.state = s, .comm = c, .id = id};
    struct found f;
    locate(from, &f);
    TRY(slices_init(&r.slices, s, e));
    r.wanted = calloc(r.slices.n + 1, sizeof *r.wanted);
    int rc = r.wanted ? deal_open(&r.deal, c, &r.slices, e) : err_errno(e, ENOMEM, "tensors of a checkpoint");
    if (rc == 0)
        rc = try_newest_first(&r, from, &f, at, e);
    deal_close(r.deal);
    free(r.wanted);
    slices_finish(&r.slices);
    return rc;
}

int snapshot_newest(struct comm *c, const struct snapshot_source *from, int64_t *ret_step, struct err *e)
{
    struct found f;
    struct offer best;
    int reader;
    locate(from, &f);
    look_for_checkpoint(from, &f);
    TRY(find_source(c, &f, &reader, &best, e));
    *ret_step = best.step;
    return 0;
}
