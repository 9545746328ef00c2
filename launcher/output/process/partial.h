/* Decides what the console shows of a line whose end has not arrived: progress bars and unfinished lines.
 *
 *   - a carriage return ends a text that will be overwritten: the newest text is shown, at most one a second; texts
 *     overwritten sooner are not shown at all;
 *   - an unfinished line that has not changed for a second is shown as a line of its own, and its rest later. Not if it
 *     is longer than PARTIAL_BYTES, or ends with a full buffer of the worker's: then the rest is about to arrive;
 *   - when such a line ends, what was not shown yet is shown; of texts that overwrite each other, the last one;
 *   - any other line is shown as it is, whatever bytes it contains.
 * Pure: time is a parameter. */
#ifndef CRUN_LAUNCHER_PARTIAL_H
#define CRUN_LAUNCHER_PARTIAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PARTIAL_MS 1000
#define PARTIAL_BYTES 4096 /* the size of C libraries' buffers, or a multiple of it */

struct partial {
    size_t shown; /* bytes of the line that have been shown, or overwritten */
    int64_t grown_ms, reported_ms;
    bool full; /* the last read ended at a multiple of a buffer's size */
    bool bar;  /* the line was seen to be overwritten */
};

struct partial_text {
    const char *text;
    size_t n;
};

void partial_init(struct partial *p);

/* The line has ended: what of it (without its newline) is still to be shown; false: nothing. The next line begins. */
bool partial_end(struct partial *p, const char *line, size_t n, struct partial_text *ret);

/* A read of `bytes` bytes arrived. */
void partial_grew(struct partial *p, size_t bytes, int64_t now_ms);

/* Look at the unfinished line. True: show *ret now. *ret_ms: look again after so many ms, -1: not before it grows. */
bool partial_check(struct partial *p, const char *line, size_t n, int64_t now_ms, struct partial_text *ret,
                   int64_t *ret_ms);

/* The last text of a line that is overwritten by carriage returns, as a terminal would show it; without any, the
 * whole line. */
struct partial_text partial_last(const char *line, size_t n);

#endif
