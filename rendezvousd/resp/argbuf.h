/* Shared by the request parsers: received bytes, the position of the current request, and its arguments. These are
 * offsets until the request is complete, because the bytes may move. */
#ifndef CRUN_RENDEZVOUSD_ARGBUF_H
#define CRUN_RENDEZVOUSD_ARGBUF_H

#include "common/base/buf.h"
#include <stdbool.h>
#include <stddef.h>

struct err;

#define ARGBUF_KEEP_BYTES (16 * 1024) /* an idle buffer frees more than this */

struct request_arg {
    union {
        const char *p; /* not NUL-terminated */
        size_t at;     /* where it begins in argbuf.in, until argbuf_point() */
    };
    size_t n;
};

struct argbuf {
    struct buf in; /* received and not yet consumed */
    size_t start;  /* of the current request in `in` */
    size_t pos;    /* where parsing goes on */
    bool complete; /* the current request was handed out */
    size_t argc, cap;
    struct request_arg *argv;
};

void argbuf_init(struct argbuf *a, size_t max_bytes);
void argbuf_free(struct argbuf *a);

/* Forget the request that was returned; free large memory if nothing is left to parse. */
void argbuf_retire(struct argbuf *a);
/* Add bytes from the network to an incomplete request. 0, -ENOMEM, -E2BIG. Pointers into `in` become invalid. */
int argbuf_feed(struct argbuf *a, const void *data, size_t n);
int argbuf_add(struct argbuf *a, size_t at, size_t n, struct err *e); /* the next argument; -ENOMEM */
void argbuf_point(struct argbuf *a);                                  /* the request is complete: set argv[].p */

size_t argbuf_left(const struct argbuf *a);   /* bytes of requests not handed out yet */
size_t argbuf_memory(const struct argbuf *a); /* bytes taken */

#endif
