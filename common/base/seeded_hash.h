/* uthash with a hash that depends on a number drawn by each process: whoever chooses keys does not choose their
 * buckets. Include it instead of <uthash.h>, everywhere: all files that use one table must, and uthash itself ends the
 * process where there is no memory. Here HASH_ADD leaves hh.tbl NULL then, and the caller looks at it.
 * Tables keep the order of insertion as ever. */
#ifndef CRUN_COMMON_SEEDED_HASH_H
#define CRUN_COMMON_SEEDED_HASH_H

#ifdef UTHASH_H
#error "include common/base/seeded_hash.h before <uthash.h>"
#endif

#include <stddef.h>

/* Any thread. */
unsigned seeded_hash(const void *p, size_t n);

#define HASH_NONFATAL_OOM 1
#define HASH_FUNCTION(p, n, hash) ((hash) = seeded_hash(p, n))
#include <uthash.h>

#endif
