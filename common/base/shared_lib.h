/* Shared libraries opened on first use: their functions as pointers in a struct, under their own names.
 *
 *     static struct hwloc_lib functions;
 *     static const struct lib_symbol symbols[] = {{"hwloc_topology_init", offsetof(struct hwloc_lib, ...)}, ...};
 *     static struct shared_lib lib = SHARED_LIB("libhwloc.so.15", "...", "...", symbols, &functions); */
#ifndef CRUN_COMMON_SHARED_LIB_H
#define CRUN_COMMON_SHARED_LIB_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

struct err;

struct lib_symbol {
    const char *name;
    size_t at; /* offset of its pointer in the struct of functions */
};

struct shared_lib {
    const char *file;     /* "libhwloc.so.15" */
    const char *package;  /* where it comes from: " (Debian: libhwloc15)" */
    const char *expected; /* what has all of the functions: "hwloc 2" */
    const struct lib_symbol *symbols;
    size_t n;
    void *functions; /* the struct to be filled */
    pthread_mutex_t lock;
    bool loaded;
};

#define SHARED_LIB(file, package, expected, symbols, functions)                                                        \
    {                                                                                                                  \
        file, package, expected, symbols, sizeof(symbols) / sizeof *(symbols), functions, PTHREAD_MUTEX_INITIALIZER,   \
            false                                                                                                      \
    }

/* l->functions, filled; stays for the life of the process. NULL, with one sentence that names the library, if it is
 * not installed (-ENOENT): the next call tries again. The first call reads files (some milliseconds). Any thread. */
const void *shared_lib_open(struct shared_lib *l, struct err *e);
bool shared_lib_is_open(struct shared_lib *l);

#endif
