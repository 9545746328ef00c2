/* Cuts a byte stream into whole lines. Pure. */
#ifndef CRUN_LAUNCHER_LINES_H
#define CRUN_LAUNCHER_LINES_H

#include <stddef.h>

#include "common/base/buf.h"

/* Longer lines are passed on in pieces of this size, so that no worker decides how much memory is used. */
#define LINES_MAX_BYTES (8u << 20)

struct lines {
    struct buf part; /* a line whose end has not arrived yet */
};

/* line: without its newline; valid during the call; may hold any bytes. */
typedef void lines_emit_fn(void *ctx, const char *line, size_t n);

void lines_init(struct lines *l);
void lines_feed(struct lines *l, const char *data, size_t n, lines_emit_fn *emit, void *ctx);
/* at the end of the stream, what is left is a line, too */
void lines_finish(struct lines *l, lines_emit_fn *emit, void *ctx);

/* The last bytes of a stream, to show the last lines of a process that failed. */
#define LINES_TAIL_BYTES 4096
struct lines_tail {
    char *ring; /* allocated by the first line */
    size_t at, n;
};

void lines_tail_add(struct lines_tail *t, const char *line, size_t n);
/* Append the last max_lines whole lines to *out, each with prefix and newline; control bytes become '?'. */
int lines_tail_render(const struct lines_tail *t, int max_lines, const char *prefix, struct buf *out);
/* Replace control bytes, except newline and tab, by '?': text of others must not control a terminal. */
void lines_clean(char *text, size_t n);
/* Copy the stored bytes in order, at most LINES_TAIL_BYTES, and return their number; set() restores them. */
size_t lines_tail_copy(const struct lines_tail *t, char out[LINES_TAIL_BYTES]);
void lines_tail_set(struct lines_tail *t, const char *bytes, size_t n);
void lines_tail_free(struct lines_tail *t);

#endif
