/* The buffer of a request parser: bytes, and where the arguments are (argbuf.h). */
#include "rendezvousd/resp/argbuf.h"
#include "common/base/array.h"
#include "common/base/buf.h"
#include "common/base/err.h"
#include <errno.h>
#include <stdlib.h>

#define KEEP_ARGS 64

void argbuf_init(struct argbuf *a, size_t max_bytes)
{
    *a = (struct argbuf){0};
    buf_init(&a->in, max_bytes);
}

static void free_args(struct argbuf *a)
{
    free(a->argv);
    a->argv = NULL;
    a->argc = a->cap = 0;
}

void argbuf_free(struct argbuf *a)
{
    buf_free(&a->in);
    free_args(a);
}

void argbuf_retire(struct argbuf *a)
{
    a->start = a->pos;
    a->argc = 0;
    a->complete = false;
    if (a->start < a->in.len)
        return;
    buf_clear(&a->in);
    a->start = a->pos = 0;
    if (a->in.cap > ARGBUF_KEEP_BYTES)
        buf_free(&a->in);
    if (a->cap > KEEP_ARGS)
        free_args(a);
}

int argbuf_feed(struct argbuf *a, const void *data, size_t n)
{
    if (a->start > 0) { /* once per read, not per request: each byte moves at most once */
        buf_consume(&a->in, a->start);
        a->pos -= a->start;
        for (size_t i = 0; i < a->argc; i++) /* of the unfinished request */
            a->argv[i].at -= a->start;
        a->start = 0;
    }
    return buf_add(&a->in, data, n);
}

int argbuf_add(struct argbuf *a, size_t at, size_t n, struct err *e)
{
    if (a->argc == a->cap && ARRAY_RESERVE(a->argv, a->cap, a->argc + 1) < 0)
        return err_set(e, -ENOMEM, "no memory for a request of %zu arguments", a->argc + 1);
    a->argv[a->argc++] = (struct request_arg){.at = at, .n = n};
    return 0;
}

void argbuf_point(struct argbuf *a)
{
    for (size_t i = 0; i < a->argc; i++)
        a->argv[i].p = a->in.data + a->argv[i].at;
}

size_t argbuf_left(const struct argbuf *a)
{
    return a->in.len - (a->complete ? a->pos : a->start);
}

size_t argbuf_memory(const struct argbuf *a)
{
    return a->in.cap + a->cap * sizeof *a->argv;
}
