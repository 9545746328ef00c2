/* The tensors of a snapshot on the host: between the state's arenas and a file. */
#ifndef CRUN_WORKER_SNAPSHOT_IMAGE_H
#define CRUN_WORKER_SNAPSHOT_IMAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "worker/ckpt/ckpt.h"
#include "worker/parallel/layout.h"
#include "worker/precision/dtype.h"

struct comm;
struct err;
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
    size_t bytes; /* of the whole, on the host; 0: the state has none */
    bool cut;     /* the device has what this rank owns (ownership.h) */
};
enum { ARENAS = 6 };
void image_arenas(const struct image *im, const struct state *s, struct arena out[ARENAS]);

/* Of arenas that are cut: what this rank owns. */
int image_download(struct image *im, const struct state *s, struct err *e);
/* All ranks, those that save with an image, the others with NULL: arenas that are cut become whole in the images. What
 * a rank without one holds meanwhile is a piece. groups: as ddp_create() has them. */
int image_collect(struct image *im, const struct state *s, struct comm *const groups[LAYOUT_GROUPS], struct err *e);
int image_upload(const struct image *im, struct state *s, struct err *e);
/* All ranks: root's image. */
int image_share(struct image *im, const struct state *s, struct comm *c, int root, struct err *e);

/* ERR_DIVERGED if a parameter is not a finite number. */
int image_check_finite(const struct image *im, struct err *e);

#endif
