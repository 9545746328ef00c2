/* What weights.c and weights_open.c share. */
#ifndef CRUN_WORKER_WEIGHTS_IMPL_H
#define CRUN_WORKER_WEIGHTS_IMPL_H

#include <stdbool.h>
#include <stddef.h>

#include "worker/ckpt/safetensors.h"
#include "worker/weights/foreign.h"

struct ckpt;
struct err;
struct pickle;

struct source {
    void (*close)(void *of);
    size_t (*count)(const void *of);
    const struct ckpt_tensor *(*at)(const void *of, size_t i);
    int (*read)(void *of, size_t i, void *dst, struct err *e);
};

struct weights {
    const struct source *source; /* what is read, */
    void *of;                    /* and the open file */
    struct ckpt *ckpt;           /* whose file that is; NULL: a bare one */
    const struct pickle *pickle; /* of a .pth file */
    size_t passed_over;          /* what of the file is not taken, */
    const char *passed;          /* and the first of it; NULL: nothing is */
    bool averages;               /* of ckpt, where it has any */
    bool asked;                  /* for a part of it */
    struct view *view;           /* NULL: all tensors, as they are called */
    size_t n;                    /* of view, or of all */
    size_t *by_name;             /* sorted numbers of tensors */
    char prefix[CKPT_NAME_MAX + 1];
    struct packed *packed; /* with numbers behind those of the file */
    size_t npacked, cap_packed;
    bool *found; /* (n) */
};

struct view { /* a tensor under another name */
    struct ckpt_tensor t;
    size_t i; /* in the file */
};

/* What is one tensor here and several in the file, or (out, in) here and (in, out) there. */
struct packed {
    struct ckpt_tensor *t;
    size_t part[FOREIGN_PARTS];
    int n;
    bool transposed;
};

/* Which kind of file it is, and open that. On failure weights_close() undoes it. */
int weights_open_path(struct weights *w, const char *path, const char *part, struct err *e);
/* Open one file, of whichever kind: sets w->source, .of, .pickle, and counts what is passed over. */
int weights_open_file(struct weights *w, const char *path, const char *part, struct err *e);

#endif
