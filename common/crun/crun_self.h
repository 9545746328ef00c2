/* The room common/crun: libcrun, the library inside a worker (common/include/crun.h is what it offers).
 *
 * crun.c reads the environment that the launcher has set (common/job/env_contract.h) and maps the page that both share
 * (crun_page.h): steps and phases go up through it by plain stores, the reason of a stop comes down. crun_store.c asks
 * the store of the round over a connection of its own. crun_round.c is for a process that outlives its round, and
 * crun_memory.c lets such a one end quickly. crun_crash.c writes a failure record from inside a signal handler. The
 * library depends on libc alone, so sources of other rooms that it needs are compiled into it and hidden (libcrun.map).
 *
 * This header: its inside, shared by the five. */
#ifndef CRUN_COMMON_SELF_H
#define CRUN_COMMON_SELF_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct crun_page;

/* The state of libcrun in this process; there is one, like the environment, so the API has no handle. Written by
 * crun_init() and crun_finish() only. */
struct libcrun {
    struct crun_page *page;            /* NULL: no launcher watches */
    char *run_id, *store, *error_file; /* NULL before crun_init() */
    int rank, world;
    double spent_us[8];   /* of the present step, by enum crun_part */
    uint32_t seq;         /* number of the newest round that crun_next_round() has returned; 0: still the first round */
    atomic_flag recorded; /* set by the first error, which is the cause; later errors are consequences */
};

extern struct libcrun libcrun_self;

#define LIBCRUN_WAIT_MAX_S (30.0 * 86400) /* the store's limit */
static inline bool libcrun_is_time(double seconds)
{
    return seconds >= 0 && seconds <= LIBCRUN_WAIT_MAX_S; /* not NaN either */
}

void libcrun_store_close(void);  /* no thread uses the store */
void libcrun_share_memory(void); /* once a process; from a thread that lives as long as the process */

#endif
