/* Lines that several ranks write alike are shown once: "[3 ranks: 0-1,5]: text".
 *
 * Lines wait in one queue per stream, in order of arrival. A line joins the first waiting one of the same text that its
 * rank has not passed yet. If its rank has passed it, but it is the last line of all who wrote it, it is moved to the
 * end and joined there. Else the line is put at the end: the lines of one rank always keep their order. The head leaves
 * once every rank has written it, it is LOG_COLLAPSE_MS old, or the queue is full. Pure: time is a parameter. */
#ifndef CRUN_LAUNCHER_LOG_COLLAPSE_H
#define CRUN_LAUNCHER_LOG_COLLAPSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buf;

#define LOG_COLLAPSE_MS 200
#define LOG_COLLAPSE_LINES 512
#define LOG_COLLAPSE_BYTES (1u << 20)

struct log_collapse;

struct log_same { /* a line and who wrote it */
    const char *line;
    size_t n;
    const uint64_t *ranks; /* bits, by local rank; NULL where count is 1 and memory ran out */
    int first, count;      /* the lowest, how many */
};
typedef void log_collapse_emit_fn(void *ctx, const struct log_same *same);

/* NULL: out of memory. */
struct log_collapse *log_collapse_create(int workers, log_collapse_emit_fn *emit, void *ctx);
/* How many ranks write to this console at all, >= 1; at first: all workers. */
void log_collapse_expect(struct log_collapse *c, int ranks);
void log_collapse_add(struct log_collapse *c, int local, const char *line, size_t n, int64_t now_ms);
/* Emit what is old enough. Returns milliseconds until the next is, -1: nothing waits. */
int64_t log_collapse_tick(struct log_collapse *c, int64_t now_ms);
void log_collapse_flush(struct log_collapse *c);
void log_collapse_free(struct log_collapse *c);

/* "0-3,5" of ranks base + bit, appended to *out. */
int log_collapse_ranks(const uint64_t *bits, int workers, int base, struct buf *out);

#endif
