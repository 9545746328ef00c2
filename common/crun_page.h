/* The page shared by the launcher and one worker: a memfd of CRUN_PAGE_BYTES, inherited as descriptor CRUN_PAGE_FD.
 * The launcher creates it before the spawn and maps it for the life of the worker. Layout is part of the protocol: only ever append. */
#ifndef CRUN_COMMON_PAGE_H
#define CRUN_COMMON_PAGE_H

#include <stdatomic.h>
#include <stdint.h>
#include <string.h>

#define CRUN_PAGE_MAGIC 0x6e757263u /* "crun" */
#define CRUN_PAGE_VERSION 1u
#define CRUN_PAGE_BYTES 4096

struct crun_page {
    uint32_t magic, version; /* launcher, before the spawn */
    int32_t notify_fd; /* launcher: eventfd inherited by the worker, written once at the first progress; -1: none */
    uint32_t reserved;
    _Atomic uint32_t stop_reason;  /* launcher: enum crun_stop_reason */
    _Atomic uint32_t attached;     /* worker: 1 once crun_init() ran: it will see reasons */
    _Atomic uint64_t step;         /* worker: last finished step */
    _Atomic int64_t first_step_ns; /* worker: CLOCK_MONOTONIC of its first progress, 0 before */
    _Atomic int64_t last_step_ns;  /* worker */
    _Atomic int32_t error_code;    /* worker: set after error_text */
    char error_text[512];          /* worker: NUL-terminated */
    _Atomic uint32_t has_metrics;  /* worker: set after the first pair of */
    uint32_t reserved2;
    _Atomic uint64_t images_per_s, loss; /* worker: bits of a double; the job's, of a recent step */
};

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

_Static_assert(sizeof(struct crun_page) <= CRUN_PAGE_BYTES, "one page");

#endif
