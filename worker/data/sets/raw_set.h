/* Data sets that are one block of raw pictures of one size in memory: MNIST, CIFAR-10. Private to worker/data. */
#ifndef CRUN_WORKER_DATA_RAW_SET_H
#define CRUN_WORKER_DATA_RAW_SET_H

#include "worker/data/sets/dataset_impl.h"

struct raw_set {
    struct dataset base; /* first; n and class names are the opener's to set */
    const char *what;    /* "MNIST" */
    int w, h, c;
    bool planar; /* (c, h, w), else (h, w, c) */
    uint8_t *px; /* n pictures; owned */
    uint8_t *labels;
};

/* All zero but ops. NULL: no memory. Closed by dataset_close(). */
struct raw_set *raw_set_create(const char *what);
/* Room for `more` further pictures; base.n is left alone. -ENOMEM. */
int raw_set_reserve(struct raw_set *r, size_t more, struct err *e);
/* Labels against the classes of the set, and the sizes against those of the caller's class map. */
int raw_set_check(struct raw_set *r, const struct dataset_options *o, char *const *own_names, int own, struct err *e);

#endif
