/* Telling a person how far training is, in the lines of one of several programs. To stderr.
 *
 * plain: epoch, step, loss, of tokens perplexity, Acc@1, images/s or tokens/s, ETA, share of time waiting for data;
 * on a terminal one line redrawn at most ten times a second, elsewhere a line every `every` steps and at the end of
 * an epoch. The others write the lines of the program they are named after, byte for byte, on a terminal too:
 * torch: PyTorch's ImageNet example (examples/imagenet/main.py); apex: NVIDIA Apex's
 * (examples/imagenet/main_amp.py); article: the MNIST scripts of distributed_tutorial (yangkky); caffe2: Caffe2's
 * resnet50_trainer.py without the logger's prefix. */
#ifndef CRUN_WORKER_PROGRESS_H
#define CRUN_WORKER_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/choice.h"

#define PROGRESS_FORMATS(X)                                                                                            \
    X(PROGRESS_PLAIN, "plain")                                                                                         \
    X(PROGRESS_TORCH, "torch")                                                                                         \
    X(PROGRESS_APEX, "apex")                                                                                           \
    X(PROGRESS_ARTICLE, "article")                                                                                     \
    X(PROGRESS_CAFFE2, "caffe2")
enum progress_format { PROGRESS_FORMATS(CHOICE_ID) };

struct progress_value {
    double now,
        mean; /* of the last step (apex: of the steps since the last line, where it is a time); over the epoch */
};

struct progress_state {
    int64_t epoch, epochs, step, steps_per_epoch; /* 0-based epoch, step within it (finished ones) */
    int64_t total_done, total_steps;
    struct progress_value loss, acc1, acc5; /* acc in percent */
    struct progress_value time, data;       /* seconds of a step; of these waiting for data */
    struct progress_value rate;             /* images/s, or tokens/s, global */
    bool tokens;                            /* the model reads tokens: perplexity is shown, too */
    double eta_seconds;
    bool synthetic; /* images are made up: the rate is not one of reading */
};

struct progress {
    enum progress_format format;
    bool terminal;
    int every;          /* lines: every so many steps */
    const char *prefix; /* of every line; "" for rank 0 */
    int64_t last_ns;
    bool open_line; /* the terminal line is unfinished */
    struct {
        double seconds, rate_seconds; /* sums since the last line: time, time * rate */
        int64_t steps;
    } since;
};

/* every 0: what the format's program does: 10, article 100, caffe2 1. prefix: borrowed. */
void progress_init(struct progress *p, enum progress_format format, int every, const char *prefix);
void progress_step(struct progress *p, const struct progress_state *s);
/* A batch of an evaluation; of s step, steps_per_epoch, time, rate, loss and accuracies count. */
void progress_test(struct progress *p, const struct progress_state *s);
void progress_end_line(struct progress *p); /* before printing anything else */
/* "1h02m", "3m20s", "45s", "2d03h"; "?" for what is no duration */
char *progress_duration(double seconds, char *out, int cap);

/* The texts themselves, without a newline at the end; all return out.
 * plain: as many of its parts, from the left, as fit into width columns (the first always). */
char *progress_text(enum progress_format f, const struct progress_state *s, int width, char *out, int cap);
char *progress_test_text(enum progress_format f, const struct progress_state *s, char *out, int cap); /* torch, apex */
/* After an evaluation, accuracies in percent; "" where the format has no such line. */
char *progress_summary_text(enum progress_format f, double acc1, double acc5, char *out, int cap);
/* Python's str(datetime.timedelta): "0:01:02.345678", "1 day, 2:03:04". */
char *progress_timedelta(int64_t microseconds, char *out, int cap);

#endif
