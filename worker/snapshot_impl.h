/* Parts of a snapshot, shared by its reader (snapshot.c) and its writer (snapshot_writer.c). */
#ifndef CRUN_WORKER_SNAPSHOT_IMPL_H
#define CRUN_WORKER_SNAPSHOT_IMPL_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "worker/ckpt/ckpt.h"
#include "worker/dtype.h"

struct err;
struct loss_scale;
struct position;
struct snapshot_identity;
struct state;

/* Host copies of the arenas and the list of tensors that lie in them. */
struct image {
    void *params, *stats, *momentum;
    void *second, *ema_params, *ema_stats; /* NULL where the state has none */
    struct ckpt_tensor *model, *train;
    size_t n_model, n_train;
    size_t n_moments; /* of train: the optimizer's; averages follow */
    size_t count;     /* elements of params */
    enum dtype real;  /* of all arenas */
    int64_t updates;  /* num_batches_tracked points here: an image must not be moved */
};

int image_init(struct image *im, const struct state *s, struct err *e);
void image_finish(struct image *im);

struct arena {
    void *host, *device;
    size_t bytes; /* 0: the state has none */
};
enum { ARENAS = 6 };
void image_arenas(const struct image *im, const struct state *s, struct arena out[ARENAS]);

int image_download(struct image *im, const struct state *s, struct err *e);
int image_upload(const struct image *im, struct state *s, struct err *e);

/* ERR_DIVERGED if a parameter is not a finite number. */
int image_check_finite(const struct image *im, struct err *e);

/* The manifest's "meta". */
cJSON *meta_make(const struct position *at, const struct snapshot_identity *id);
/* How the losses of this run are scaled. What another precision, or another choice of --loss-scale, had come to is not taken up (that is
 * told), but how many steps were left out. */
void meta_add_scale(cJSON *meta, const struct loss_scale *s);
void meta_take_scale(const cJSON *meta, const struct snapshot_identity *id, bool tell, struct loss_scale *s);
/* Does it fit this run? ERR_MISMATCH names both values. tell: log what differs and is taken. */
int meta_check(const cJSON *meta, const struct snapshot_identity *id, bool tell, struct err *e);
int meta_position(const cJSON *meta, struct position *at, struct err *e);
bool meta_same_optimizer(const cJSON *meta, const struct snapshot_identity *id);

#endif
