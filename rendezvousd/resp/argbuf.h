/* What the request parsers have in common: received bytes, where the current request stands among them, and its
 * arguments, which are places until the request is complete, as the bytes may move. */
#ifndef CRUN_RENDEZVOUSD_ARGBUF_H
#define CRUN_RENDEZVOUSD_ARGBUF_H

#include "common/base/buf.h"
#include <stdbool.h>
#include <stddef.h>

struct err;

#define ARGBUF_KEEP_BYTES (16 * 1024) /* an idle one gives back more than this */

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

/* Forget the request that was handed out; large memory goes back once nothing is left to parse. */
void argbuf_retire(struct argbuf *a);
/* Take bytes from the network, of a request that is not complete. 0, -ENOMEM, -E2BIG. Pointers into `in` hold no
 * longer. */
int argbuf_feed(struct argbuf *a, const void *data, size_t n);
int argbuf_add(struct argbuf *a, size_t at, size_t n, struct err *e); /* the next argument; -ENOMEM */
void argbuf_point(struct argbuf *a);                                  /* the request is complete: set argv[].p */

size_t argbuf_left(const struct argbuf *a);   /* bytes of requests not handed out yet */
size_t argbuf_memory(const struct argbuf *a); /* bytes taken */

#endif
