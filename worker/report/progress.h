/* The line a person watches: epoch, step, loss, Acc@1, images/s, ETA, share of time waiting for data.
 * On a terminal one line redrawn at most ten times a second; elsewhere a plain line every `every` steps and at the end
 * of an epoch. To stderr. */
#ifndef CRUN_WORKER_PROGRESS_H
#define CRUN_WORKER_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

enum progress_format { PROGRESS_PLAIN, PROGRESS_TORCH, PROGRESS_APEX, PROGRESS_ARTICLE, PROGRESS_CAFFE2 };
#define PROGRESS_CHOICES "plain|torch|apex|article|caffe2"

struct progress {
    bool terminal;
    int every; /* plain lines: every so many steps */
    int64_t last_ns;
    bool open_line; /* the terminal line is unfinished */
};

struct progress_state {
    int64_t epoch, epochs, step, steps_per_epoch; /* 0-based epoch, step within it (finished ones) */
    int64_t total_done, total_steps;
    double loss, acc1; /* running means of the epoch */
    double images_per_sec, data_wait, eta_seconds;
};

void progress_init(struct progress *p, int every);
void progress_step(struct progress *p, const struct progress_state *s);
void progress_end_line(struct progress *p); /* before printing anything else */
/* "1h02m", "3m20s", "45s", "2d03h"; "?" for what is no duration */
char *progress_duration(double seconds, char *out, int cap);

/* The line itself: as many of its parts, from the left, as fit into width columns (the first always). Returns out. */
char *progress_format(const struct progress_state *s, int width, char *out, int cap);

#endif
