/* Cuts a byte stream into lines, and keeps the last ones (lines.h). */
#include "launcher/output/lines.h"

#include <stdlib.h>
#include <string.h>

/* The buffer of a long line is freed after it. */
#define KEEP_BYTES (64u << 10)

void lines_init(struct lines *l)
{
    buf_init(&l->part, LINES_MAX_BYTES);
}

static void emit_part(struct lines *l, lines_emit_fn *emit, void *ctx)
{
    emit(ctx, l->part.data, l->part.len);
    if (l->part.cap > KEEP_BYTES)
        buf_free(&l->part);
    else
        buf_clear(&l->part);
}

/* Keep the beginning of a line; n <= LINES_MAX_BYTES. If memory runs out, pass it on in pieces, like a line that is
 * too long. */
static void keep(struct lines *l, const char *data, size_t n, lines_emit_fn *emit, void *ctx)
{
    if (n == 0 || buf_add(&l->part, data, n) == 0)
        return;
    if (l->part.len > 0)
        emit_part(l, emit, ctx);
    if (buf_add(&l->part, data, n) < 0)
        emit(ctx, data, n);
}

void lines_feed(struct lines *l, const char *data, size_t n, lines_emit_fn *emit, void *ctx)
{
    while (n > 0) {
        const char *end = memchr(data, '\n', n);
        size_t len = end ? (size_t)(end - data) : n;
        if (end && l->part.len == 0) {
            emit(ctx, data, len);
        } else {
            keep(l, data, len, emit, ctx);
            if (end)
                emit_part(l, emit, ctx);
        }
        data += len + (end != NULL);
        n -= len + (end != NULL);
    }
}

void lines_finish(struct lines *l, lines_emit_fn *emit, void *ctx)
{
    if (l->part.len > 0)
        emit_part(l, emit, ctx);
    buf_free(&l->part);
}

static void tail_put(struct lines_tail *t, const char *data, size_t n)
{
    while (n > 0) {
        size_t room = LINES_TAIL_BYTES - t->at, len = n < room ? n : room;
        memcpy(t->ring + t->at, data, len);
        t->at = (t->at + len) % LINES_TAIL_BYTES;
        t->n = t->n + len < LINES_TAIL_BYTES ? t->n + len : LINES_TAIL_BYTES;
        data += len;
        n -= len;
    }
}

void lines_tail_add(struct lines_tail *t, const char *line, size_t n)
{
    if (!t->ring && !(t->ring = malloc(LINES_TAIL_BYTES)))
        return;
    if (n > LINES_TAIL_BYTES - 1) { /* of a huge line its end */
        line += n - (LINES_TAIL_BYTES - 1);
        n = LINES_TAIL_BYTES - 1;
    }
    tail_put(t, line, n);
    tail_put(t, "\n", 1);
}

void lines_clean(char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (((unsigned char)text[i] < 0x20 && text[i] != '\n' && text[i] != '\t') || text[i] == 0x7f)
            text[i] = '?';
}

size_t lines_tail_copy(const struct lines_tail *t, char out[LINES_TAIL_BYTES])
{
    const size_t first = t->n < LINES_TAIL_BYTES ? 0 : t->at;
    for (size_t i = 0; i < t->n; i++)
        out[i] = t->ring[(first + i) % LINES_TAIL_BYTES];
    return t->n;
}

void lines_tail_set(struct lines_tail *t, const char *bytes, size_t n)
{
    t->at = t->n = 0;
    if (n > 0 && n <= LINES_TAIL_BYTES && (t->ring || (t->ring = malloc(LINES_TAIL_BYTES))))
        tail_put(t, bytes, n);
}

int lines_tail_render(const struct lines_tail *t, int max_lines, const char *prefix, struct buf *out)
{
    char text[LINES_TAIL_BYTES];
    if (t->n == 0)
        return 0;
    lines_tail_copy(t, text);
    lines_clean(text, t->n);
    size_t start = t->n - 1; /* text ends with a newline */
    for (int lines = 0; start > 0; start--)
        if (text[start - 1] == '\n' && ++lines == max_lines)
            break;
    for (size_t i = start; i < t->n;) {
        size_t len = (size_t)((char *)memchr(text + i, '\n', t->n - i) - (text + i)) + 1;
        int rc = buf_addstr(out, prefix);
        if (rc == 0)
            rc = buf_add(out, text + i, len);
        if (rc < 0)
            return rc;
        i += len;
    }
    return 0;
}

void lines_tail_free(struct lines_tail *t)
{
    free(t->ring);
    memset(t, 0, sizeof *t);
}
