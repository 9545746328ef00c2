/* The page shared by the launcher and one worker: a memfd of CRUN_PAGE_BYTES, inherited as descriptor CRUN_PAGE_FD.
 * The launcher creates it before the spawn and maps it for the life of the worker. Layout is part of the protocol: only ever append. */
#ifndef CRUN_COMMON_PAGE_H
#define CRUN_COMMON_PAGE_H

#include <stdatomic.h>
#include <stdint.h>

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
};

_Static_assert(sizeof(struct crun_page) <= CRUN_PAGE_BYTES, "one page");

#endif
