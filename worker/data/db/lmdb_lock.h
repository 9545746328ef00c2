/* Room for an LMDB's lock file. The library maps it, full of holes, and writes there: on a full disk that kills the
 * process (SIGBUS). */
#ifndef CRUN_WORKER_DATA_LMDB_LOCK_H
#define CRUN_WORKER_DATA_LMDB_LOCK_H

struct err;

#define LMDB_LOCK_READERS 1024 /* at once, of all processes: one for each data set that is open */

/* Before mdb_env_open() of `path`: its lock file, path with `name` ("/lock.mdb", "-lock") behind it, has blocks on the
 * disk for LMDB_LOCK_READERS readers. One that cannot be opened for writing is left to the library. Returns 0; 1: it is
 * a link, or no regular file, and not to be used, for the library would write to where it leads. ERR_OUTPUT: the disk
 * is full. */
int lmdb_lock_reserve(const char *path, const char *name, struct err *e);

#endif
