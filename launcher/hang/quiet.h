/* Decides whether workers that report nothing still make progress. Pure: samples and a clock in, a verdict out;
 * hang_quiet.c takes the samples.
 *
 * For --hang-timeout SECONDS and programs that do not report steps to libcrun: PyTorch's, unchanged. What a worker does
 * inside is not known. So it looks for *signs of life*, without which no working worker can be:
 *   - processor time of its process and all below it: more than QUIET_CPU_NS and QUIET_CPU_PERCENT of one core since
 *     its last sign (background threads of a hung one use less), or QUIET_BURST_PERCENT since the last look;
 *   - a byte that its process itself reads or writes by read(2) and write(2): what it prints, files, Gloo's messages.
 *     Not those of its children: helpers that send reports go on while it hangs;
 *   - for all workers together: a change of a key in the round's store.
 * A worker that waits for another is quiet, but does not hang: the job hangs when *all* ranks of all nodes have given
 * no sign for the whole time. So a job in which one rank computes, reads or prints is never ended, however long the
 * others wait. A rank that spins for ever is not found: it looks as if it computed.
 *
 * Each node watches its own workers; group rank 0 combines their reports (struct quiet_rank for each rank of the
 * job). */
#ifndef CRUN_LAUNCHER_QUIET_H
#define CRUN_LAUNCHER_QUIET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "launcher/hang/hang.h"

struct buf;

#define QUIET_CPU_NS INT64_C(30000000) /* three ticks, the kernel's unit of processor time */
#define QUIET_CPU_PERCENT 2
#define QUIET_BURST_PERCENT 20
#define QUIET_LOOKS 10 /* looks within the time allowed */
#define QUIET_LOOK_MIN_NS INT64_C(50000000)
#define QUIET_LOOK_MAX_NS INT64_C(5000000000)

struct quiet_sample {
    int64_t cpu_ns;
    uint64_t bytes;
};

struct quiet_mark { /* a worker's last sign of life */
    bool known;
    int64_t ns;
    struct quiet_sample at;
    int64_t look_ns, look_cpu_ns; /* of the last sample */
};

/* Does this sample show a sign of life? Then *m is set to it. The first sample counts as one. */
bool quiet_is_sign(struct quiet_mark *m, int64_t now_ns, const struct quiet_sample *s);

int64_t quiet_look_ns(int64_t timeout_ns); /* from one look to the next */

/* What is known about a rank that has given no sign of life for the whole time. */
struct quiet_rank {
    int64_t heard_ns; /* 0: nothing is */
    int64_t since_ns; /* since when its node's workers are quiet */
    bool gone;        /* its process has ended: it stands nowhere */
    bool stopped;     /* by a signal */
    bool informed;    /* its node knows the verdict */
    char wait[48];    /* kernel function in which its first thread waits; "?": not known. No spaces */
};

/* Have all ranks been quiet for timeout_ns, and been reported at most fresh_ns ago? */
bool quiet_all(const struct quiet_rank *v, int world, int64_t now_ns, int64_t timeout_ns, int64_t fresh_ns);

/* Find the rank to blame: a stopped one; else, of three or more, the one that waits in a place of its own while all
 * others wait in the same place; else none stands out. */
void quiet_judge(const struct quiet_rank *v, int world, double seconds, struct hang_verdict *ret);

/* Blame v, which is this rank; the caller fills in text. */
void quiet_blame(const struct quiet_rank *v, int rank, struct hang_verdict *ret);

/* Write ranks base .. base + n - 1 for group rank 0: "quiet_ms base state:wait ...". -ENOMEM. */
int quiet_write(struct buf *out, int64_t now_ns, int base, const struct quiet_rank *v, int n);
/* Read that into v[world]. false: it makes no sense, and v is unchanged. ret_base, ret_n: the ranks that it was
 * about. */
bool quiet_parse(const char *text, size_t n, int64_t now_ns, struct quiet_rank *v, int world, int *ret_base,
                 int *ret_n);

#endif
