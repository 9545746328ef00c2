/* The inside of libcrun, shared by crun.c (environment and page), crun_store.c and crun_crash.c. */
#ifndef CRUN_COMMON_SELF_H
#define CRUN_COMMON_SELF_H

#include <stdatomic.h>

struct crun_page;

/* One per process, as the environment is: the API has no handle. Written by crun_init() and crun_finish() only. */
struct libcrun {
    struct crun_page *page;            /* NULL: no launcher watches */
    char *run_id, *store, *error_file; /* NULL before crun_init() */
    int rank, world;
    atomic_flag recorded; /* the first error is the cause; later ones are consequences */
};

extern struct libcrun libcrun_self;

void libcrun_store_close(void); /* no thread uses the store */

#endif
