/* Do workers that report nothing still live? Pure: samples and a clock in, a verdict out; hang_quiet.c takes the
 * samples.
 *
 * For --hang-timeout SECONDS and programs that do not report steps to libcrun: PyTorch's, unchanged. What a worker
 * does inside is not known, so only what no worker that works can do without counts, a *sign of life*:
 *   - processor time of its process and of all below it: more than QUIET_CPU_NS and QUIET_CPU_PERCENT of one core
 *     since its last sign (the background threads of one that hangs need less), or QUIET_BURST_PERCENT since the last
 *     look;
 *   - a byte that its process itself reads or writes by read(2) and write(2): what it prints, files, Gloo's messages.
 *     Not those of its children: helpers that send reports go on while it hangs;
 *   - of all together: a change of a key in the round's store.
 * One that waits for another is quiet, and does not hang: the job hangs when *all* ranks of all nodes have given no
 * sign for the whole time. So nobody who computes, reads, waits for a rank that does, or prints is ever ended, however
 * long it takes. A rank that spins for ever is not found: it looks as if it computed.
 *
 * Each node watches its own; group rank 0 puts together (struct quiet_rank for each rank of the job). */
#ifndef CRUN_LAUNCHER_QUIET_H
#define CRUN_LAUNCHER_QUIET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "launcher/hang/hang.h"

struct buf;

#define QUIET_CPU_NS INT64_C(30000000) /* three ticks of the clock that the kernel counts by */
#define QUIET_CPU_PERCENT 2
#define QUIET_BURST_PERCENT 20
#define QUIET_LOOKS 10 /* in the time allowed */
#define QUIET_LOOK_MIN_NS INT64_C(50000000)
#define QUIET_LOOK_MAX_NS INT64_C(5000000000)

struct quiet_sample {
    int64_t cpu_ns;
    uint64_t bytes;
};

struct quiet_mark { /* of a worker: its last sign of life */
    bool known;
    int64_t ns;
    struct quiet_sample at;
    int64_t look_ns, look_cpu_ns; /* of the last sample */
};

/* Is that a sign of life? Then the mark moves. The first sample is one. */
bool quiet_is_sign(struct quiet_mark *m, int64_t now_ns, const struct quiet_sample *s);

int64_t quiet_look_ns(int64_t timeout_ns); /* from one look to the next */

/* What is known of a rank that has given no sign of life for the whole time. */
struct quiet_rank {
    int64_t heard_ns; /* 0: nothing is */
    int64_t since_ns; /* its node's workers are quiet */
    bool gone;        /* its process has ended: it stands nowhere */
    bool stopped;     /* by a signal */
    bool informed;    /* its node knows the verdict */
    char wait[48];    /* the kernel function in which its first thread waits; "?": not known. No spaces */
};

/* All ranks are quiet, for timeout_ns now, and were heard at most fresh_ns ago. */
bool quiet_all(const struct quiet_rank *v, int world, int64_t now_ns, int64_t timeout_ns, int64_t fresh_ns);

/* Whom to blame: a stopped one; else, of three or more, the one that waits where no other does while all others wait
 * in one place; else nobody stands out. */
void quiet_judge(const struct quiet_rank *v, int world, double seconds, struct hang_verdict *ret);

/* v, which is this rank, is to blame; text is left to the caller. */
void quiet_blame(const struct quiet_rank *v, int rank, struct hang_verdict *ret);

/* Ranks base .. base + n - 1, for group rank 0: "quiet_ms base state:wait ...", and back. -ENOMEM. */
int quiet_write(struct buf *out, int64_t now_ns, int base, const struct quiet_rank *v, int n);
/* Into v[world]. false: it makes no sense, and v is as it was. ret_base, ret_n: the ranks that it was about. */
bool quiet_parse(const char *text, size_t n, int64_t now_ns, struct quiet_rank *v, int world, int *ret_base,
                 int *ret_n);

#endif
