/* What the console shows of a line whose end has not come: progress bars and begun lines.
 *
 *   - a carriage return ends a line that is meant to be overwritten: the newest is shown, at most one a second, and
 *     what is overwritten before that is not shown at all;
 *   - a begun line that has stood for a second is shown as a line of its own, and later what follows it; not one that
 *     is longer than PARTIAL_BYTES, nor one that ends with a full buffer of the worker's: such a line is on its way;
 *   - of a line that was one of these, in the end what was not shown yet, and of texts that overwrite each other the
 *     last;
 *   - any other line is shown as it is, whatever bytes it holds.
 * Pure: time is a parameter. */
#ifndef CRUN_LAUNCHER_PARTIAL_H
#define CRUN_LAUNCHER_PARTIAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PARTIAL_MS 1000
#define PARTIAL_BYTES 4096 /* and what the buffers of C libraries hold, or a part of it */

struct partial {
    size_t shown; /* bytes of the line that are shown, or overwritten */
    int64_t grown_ms, reported_ms;
    bool full; /* the last read ended where a buffer did */
    bool bar;  /* the line was seen to be overwritten */
};

struct partial_text {
    const char *text;
    size_t n;
};

void partial_init(struct partial *p);

/* What a whole line, without its newline, leaves to show; false: nothing. The next line begins. */
bool partial_end(struct partial *p, const char *line, size_t n, struct partial_text *ret);

/* A read of that many bytes came. */
void partial_grew(struct partial *p, size_t bytes, int64_t now_ms);

/* The line so far. True: *ret is to be shown now. *ret_ms: look again after so long, -1: not before it grows. */
bool partial_check(struct partial *p, const char *line, size_t n, int64_t now_ms, struct partial_text *ret,
                   int64_t *ret_ms);

/* The last text of a line that is overwritten by carriage returns, as a terminal would show it; all of one without. */
struct partial_text partial_last(const char *line, size_t n);

#endif
