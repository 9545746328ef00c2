/* uthash with a hash that depends on a random number of each process: a peer that chooses keys cannot choose their
 * buckets. Include it instead of <uthash.h>, everywhere: all files that use the same table must. Where uthash would
 * end the process for lack of memory, HASH_ADD leaves hh.tbl NULL here, and the caller checks it. Tables keep the
 * order of insertion. */
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
