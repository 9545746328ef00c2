#include "tests/worker/snapshot/whole.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "worker/snapshot/deal.h"

enum { RANKS_MAX = 64 };

static int take_tensor(const struct ckpt_tensor *t, char *to, int64_t bytes, struct err *e)
{
    for (int64_t at = 0; at < bytes; at += CKPT_PIECE) {
        const size_t n = (size_t)(bytes - at) < CKPT_PIECE ? (size_t)(bytes - at) : CKPT_PIECE;
        const void *piece;
        TRY(t->source->bytes(t->source, t, at, n, &piece, e));
        memcpy(to + at, piece, n);
    }
    return 0;
}

static int take_all(struct whole *w, const struct slices *s, struct err *e)
{
    *w = (struct whole){.tensors = calloc(s->n, sizeof *w->tensors), .n = s->n};
    for (size_t i = 0; i < s->n; i++) {
        int64_t bytes = 0;
        TRY(ckpt_tensor_bytes(&s->tensors[i], &bytes));
        char *data = malloc((size_t)bytes + 1);
        w->tensors[i] = s->tensors[i];
        w->tensors[i].data = data;
        TRY(data ? take_tensor(&s->tensors[i], data, bytes, e) : err_errno(e, ENOMEM, "a tensor"));
    }
    return 0;
}

int whole_collect(struct whole *w, struct state *s, struct comm *c, struct err *e)
{
    const bool writers[RANKS_MAX] = {true};
    struct slices slices;
    struct deal *d = NULL;
    TRY(slices_init(&slices, s, e));
    int rc = deal_open(&d, c, &slices, e);
    if (rc == 0)
        rc = deal_save_begin(d, writers, e);
    if (rc == 0 && w) {
        deal_set_source(d);
        rc = take_all(w, &slices, e);
    }
    if (rc == 0)
        rc = deal_save_end(d, e);
    deal_close(d);
    slices_finish(&slices);
    return rc;
}

void whole_free(struct whole *w)
{
    for (size_t i = 0; i < w->n; i++)
        free((void *)(uintptr_t)w->tensors[i].data);
    free(w->tensors);
    *w = (struct whole){0};
}

int64_t whole_elements(const struct whole *w, size_t i)
{
    int64_t bytes = 0;
    ckpt_tensor_bytes(&w->tensors[i], &bytes);
    return bytes / (int64_t)dtype_size(w->tensors[i].dtype);
}
