/* A set in two: what is trained on, and what is held out of it. */
#ifndef CRUN_WORKER_DATASET_SPLIT_H
#define CRUN_WORKER_DATASET_SPLIT_H

#include <stdint.h>

struct dataset;
struct err;

/* Each sample is held out, or not, by (seed, its name behind `root`) alone: about `share` of them, 0 < share < 1, the
 * same ones in any order, beside any others, and wherever the set lies. Both parts have all classes of `whole`, which
 * they take over: it is closed with the last of them. ERR_DATA: a part would be empty, or a class whose samples are
 * known has none left to train on. On failure `whole` is still the caller's. */
int dataset_split(struct dataset *whole, const char *root, double share, uint64_t seed, struct dataset **ret_train,
                  struct dataset **ret_held, struct err *e);

#endif
