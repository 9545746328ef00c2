/* The page shared by the launcher and one worker: a memfd of CRUN_PAGE_BYTES, inherited as descriptor CRUN_PAGE_FD. The
 * launcher creates it before the spawn and maps it for the life of the worker. Layout is part of the protocol: only
 * ever append. */
#ifndef CRUN_COMMON_PAGE_H
#define CRUN_COMMON_PAGE_H

#include <stdatomic.h>
#include <stdint.h>
#include <string.h>

#define CRUN_PAGE_MAGIC 0x6e757263u   /* "crun" */
#define CRUN_MEMORY_NAME "job-memory" /* the process that shares the memory of a worker that stays (crun_memory.c) */
#define CRUN_PAGE_VERSION 2u /* version that this launcher writes; 2: it can hold a process between two rounds */
#define CRUN_PAGE_OLDEST 1u  /* oldest version that libcrun accepts */
#define CRUN_PAGE_BYTES 4096

/* Histogram of the times of steps: 16 buckets for each doubling of the time; the first begins at 0, the last has no
 * end. A worker counts its own steps, so that the launcher need not see each one. */
#define CRUN_PAGE_BUCKETS 384
#define CRUN_PAGE_OCTAVE 16     /* buckets of a doubling */
#define CRUN_PAGE_LEAST_LOG2 17 /* bucket 0 ends at 2^17 ns = 131 us; the last one begins at 36 minutes */
#define CRUN_PAGE_PHASES 8      /* room for more than enum crun_phase has */
#define CRUN_PAGE_FIGURES 16    /* likewise, enum crun_figure */

#define CRUN_PAGE_PARTS 6 /* likewise, enum crun_part */
#define CRUN_PAGE_ROWS 32 /* number of newest steps whose parts are kept */

#define CRUN_PAGE_METRICS 8      /* figures that the program names */
#define CRUN_PAGE_METRIC_NAME 32 /* with the terminating NUL */
#define CRUN_PAGE_METRIC_UNIT 16
struct crun_page_metric {
    char name[CRUN_PAGE_METRIC_NAME], unit[CRUN_PAGE_METRIC_UNIT]; /* worker: once, before `metrics` counts it */
    _Atomic uint64_t value;                                        /* worker: bits of a double */
};

/* How long each part of a step took. Step N is in row N % CRUN_PAGE_ROWS. */
struct crun_page_row {
    _Atomic uint32_t step; /* worker: low bits of N + 1, stored after us[]; 0: the row is being written */
    _Atomic uint32_t us[CRUN_PAGE_PARTS]; /* worker: by enum crun_part */
};

/* A new round, published to a process that was held: the fields of struct crun_info that may change. */
struct crun_page_round {
    int32_t rank, world_size, local_rank, local_world_size, group_rank, group_world_size, round, restart_count;
    char store[256]; /* "resp://host:port" */
};

#define CRUN_PAGE_ROUND_WORDS (sizeof(struct crun_page_round) / sizeof(uint64_t))

struct crun_page {
    uint32_t magic, version; /* launcher, before the spawn */
    int32_t notify_fd; /* launcher: eventfd inherited by the worker, written once at the first progress; -1: none */
    uint32_t reserved;
    _Atomic uint32_t stop_reason;  /* launcher: enum crun_stop_reason */
    _Atomic uint32_t attached;     /* worker: 1 after crun_init(): the worker will see the reason of a stop */
    _Atomic uint64_t step;         /* worker: last finished step */
    _Atomic int64_t first_step_ns; /* worker: CLOCK_MONOTONIC of its first progress, 0 before */
    _Atomic int64_t last_step_ns;  /* worker */
    _Atomic int32_t error_code;    /* worker: set after error_text */
    char error_text[512];          /* worker: NUL-terminated */
    _Atomic uint32_t has_metrics;  /* worker: set after the first pair of */
    uint32_t reserved2;
    _Atomic uint64_t images_per_s, loss; /* worker: the whole job's, at a recent step; bits of a double */
    _Atomic uint32_t phase;              /* worker: enum crun_phase; set after phase_ns */
    uint32_t reserved3;
    _Atomic int64_t phase_ns; /* worker: CLOCK_MONOTONIC of the last change of phase, 0: none */
    /* worker: longest time spent in each phase that it has left; [0]: longest step */
    _Atomic int64_t longest_ns[CRUN_PAGE_PHASES];
    _Atomic uint32_t steps[CRUN_PAGE_BUCKETS]; /* worker: number of its steps, except the first, by duration */
    /* --- version 2 */
    /* launcher, before the spawn: eventfd that the worker inherits, readable while the page shows the reason of a
     * stop; -1: this launcher holds no workers */
    int32_t wake_fd;
    /* launcher: futex word; it changes with everything that the worker may wait for: reasons and rounds */
    _Atomic uint32_t wake;
    _Atomic uint32_t stays; /* worker: 1: it may be held; 2: also when nodes join */
    _Atomic uint32_t holds; /* launcher: how often it has held this worker; stored before the reason */
    _Atomic uint32_t held;  /* worker: the newest of `holds` that it has acknowledged; it writes notify_fd then */
    /* launcher: seqlock of `next`: odd during a write, else 2 x number of rounds published */
    _Atomic uint32_t next_seq;
    /* launcher: a struct crun_page_round; stored before the reason becomes none */
    _Atomic uint64_t next[CRUN_PAGE_ROUND_WORDS];
    /* launcher, before the spawn: for a warm spare, a socket over which it gets its stdout and stderr before a
     * round; else -1 */
    int32_t stdio_fd;
    uint32_t reserved4;
    _Atomic uint32_t figures_set; /* worker: bit N: figure[N] has been stored */
    uint32_t reserved5;
    _Atomic uint64_t figure[CRUN_PAGE_FIGURES]; /* worker: values by enum crun_figure, as bits of a double */
    _Atomic int64_t wait_ns;                    /* worker: all CRUN_FIGURE_WAIT_S together */
    _Atomic uint32_t parts;                     /* worker: bit N: enum crun_part N was reported in this round */
    _Atomic uint32_t link_us[2];                /* worker: crun_links(), + 1; 0: not reported */
    struct crun_page_row rows[CRUN_PAGE_ROWS];
    /* launcher, before the spawn: descriptor of the node's shared memory (crun_node_memory()) + 1; 0: none */
    int32_t memory_fd;
    uint32_t reserved6;
    _Atomic uint64_t keeps;   /* worker: crun_keeps(), + 1; 0: nothing */
    _Atomic uint32_t done;    /* worker: 1: crun_done() */
    _Atomic uint32_t metrics; /* worker: how many of metric[] there are */
    struct crun_page_metric metric[CRUN_PAGE_METRICS];
};

/* May a program name a figure like this? Both have their NUL. */
static inline int crun_page_is_metric(const char *name, const char *unit)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./-";
    size_t n = 0;
    while (name[n] && strchr(letters, name[n]))
        n++;
    if (n == 0 || name[n] || n >= CRUN_PAGE_METRIC_NAME)
        return 0;
    for (n = 0; unit[n] && (strchr(letters, unit[n]) || strchr("%^*()", unit[n])); n++)
        ;
    return !unit[n] && n < CRUN_PAGE_METRIC_UNIT;
}

/* Launcher: read the parts of a step. 0: the page does not have them (any more). */
static inline int crun_page_read_row(struct crun_page *p, uint64_t step, uint32_t us[CRUN_PAGE_PARTS])
{
    struct crun_page_row *row = &p->rows[step % CRUN_PAGE_ROWS];
    const uint32_t is = (uint32_t)step + 1;
    if (atomic_load_explicit(&row->step, memory_order_acquire) != is)
        return 0;
    for (int i = 0; i < CRUN_PAGE_PARTS; i++)
        us[i] = atomic_load_explicit(&row->us[i], memory_order_relaxed);
    atomic_thread_fence(memory_order_acquire);
    return atomic_load_explicit(&row->step, memory_order_relaxed) == is;
}

/* Worker: the same from the other side. */
static inline void crun_page_write_row(struct crun_page *p, uint64_t step, const uint32_t us[CRUN_PAGE_PARTS])
{
    struct crun_page_row *row = &p->rows[step % CRUN_PAGE_ROWS];
    atomic_store_explicit(&row->step, 0, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    for (int i = 0; i < CRUN_PAGE_PARTS; i++)
        atomic_store_explicit(&row->us[i], us[i], memory_order_relaxed);
    atomic_store_explicit(&row->step, (uint32_t)step + 1, memory_order_release);
}

/* Launcher: publish the next round. */
static inline void crun_page_tell_round(struct crun_page *p, const struct crun_page_round *r)
{
    uint64_t words[CRUN_PAGE_ROUND_WORDS];
    const uint32_t seq = atomic_load_explicit(&p->next_seq, memory_order_relaxed);
    memcpy(words, r, sizeof words);
    atomic_store_explicit(&p->next_seq, seq + 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    for (unsigned i = 0; i < CRUN_PAGE_ROUND_WORDS; i++)
        atomic_store_explicit(&p->next[i], words[i], memory_order_relaxed);
    atomic_store_explicit(&p->next_seq, seq + 2, memory_order_release);
}

/* Worker: read the newest round; *ret_seq gets its number. 0: it is being written, or none was published. */
static inline int crun_page_read_round(struct crun_page *p, struct crun_page_round *ret, uint32_t *ret_seq)
{
    uint64_t words[CRUN_PAGE_ROUND_WORDS];
    const uint32_t seq = atomic_load_explicit(&p->next_seq, memory_order_acquire);
    for (unsigned i = 0; i < CRUN_PAGE_ROUND_WORDS; i++)
        words[i] = atomic_load_explicit(&p->next[i], memory_order_relaxed);
    atomic_thread_fence(memory_order_acquire);
    if (seq == 0 || seq % 2 == 1 || atomic_load_explicit(&p->next_seq, memory_order_relaxed) != seq)
        return 0;
    memcpy(ret, words, sizeof words);
    *ret_seq = seq;
    return 1;
}

/* Bucket of a duration, and where a bucket begins. */
static inline unsigned crun_page_bucket(int64_t ns)
{
    if (ns < (INT64_C(1) << CRUN_PAGE_LEAST_LOG2))
        return 0;
    const unsigned log2 = 63u - (unsigned)__builtin_clzll((unsigned long long)ns);
    const unsigned part = (unsigned)(ns >> (log2 - 4)) & (CRUN_PAGE_OCTAVE - 1);
    const unsigned i = (log2 - CRUN_PAGE_LEAST_LOG2) * CRUN_PAGE_OCTAVE + part;
    return i < CRUN_PAGE_BUCKETS ? i : CRUN_PAGE_BUCKETS - 1;
}

static inline int64_t crun_page_bucket_begin(unsigned i)
{
    const unsigned log2 = CRUN_PAGE_LEAST_LOG2 + i / CRUN_PAGE_OCTAVE;
    return i == 0 ? 0 : (INT64_C(1) << log2) + ((int64_t)(i % CRUN_PAGE_OCTAVE) << (log2 - 4));
}

static inline double crun_page_real(_Atomic uint64_t *at)
{
    const uint64_t bits = atomic_load_explicit(at, memory_order_relaxed);
    double v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

static inline void crun_page_set_real(_Atomic uint64_t *at, double v)
{
    uint64_t bits;
    memcpy(&bits, &v, sizeof bits);
    atomic_store_explicit(at, bits, memory_order_relaxed);
}

_Static_assert(sizeof(struct crun_page_round) % sizeof(uint64_t) == 0, "whole words");
_Static_assert(sizeof(struct crun_page) <= CRUN_PAGE_BYTES, "one page");

#endif
