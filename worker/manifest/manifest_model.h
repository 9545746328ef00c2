/* The model in a checkpoint's manifest: "arch", its name, and "model": {"text": ..., "crc32c": "1a2b3c4d"}, from which
 * whoever has the checkpoint builds it. Older checkpoints have "arch" and "net_style" alone, which mean a shipped
 * model. */
#ifndef CRUN_WORKER_MANIFEST_MODEL_H
#define CRUN_WORKER_MANIFEST_MODEL_H

#include <cjson/cJSON.h>
#include <stdint.h>

struct err;
struct model_options;

struct meta_model { /* of a run */
    const char *arch, *text;
    int style; /* enum net_style */
};
void meta_add_model(cJSON *meta, const struct meta_model *m);

/* *ret: its text, from malloc. ERR_CORRUPT: it is not what its sum is of, or is wrong; ERR_MISMATCH: an older
 * checkpoint's arch is not known here. Each in one sentence. */
int meta_model_text(const cJSON *meta, char **ret, struct err *e);

/* What its program is built for. ERR_CORRUPT names a number that no model can have. */
struct meta_shape {
    int classes; /* of tokens the vocabulary */
    int size, channels;
    int length; /* of tokens; 0: it reads pictures */
};
int meta_shape(const cJSON *meta, struct meta_shape *ret, struct err *e);

/* ERR_MISMATCH says in what a run's model differs from the checkpoint's. Initial values and names may. */
int meta_check_model(const cJSON *meta, const struct meta_model *m, struct err *e);

/* Before memory is taken for a model that a stranger wrote: ERR_MISMATCH if it has more elements,
 * statistics included, than are stored. */
int model_check_held(const struct model_options *o, int64_t held, struct err *e);

#endif
