/* What LevelDB believes of a table file (.ldb, .sst) before it has read it. */
#ifndef CRUN_WORKER_DATA_LEVELDB_TABLE_H
#define CRUN_WORKER_DATA_LEVELDB_TABLE_H

struct err;

/* A table ends with a footer, which no checksum covers, that says where its index is and how long. LevelDB takes that
 * much memory and is aborted if there is none. ERR_DATA: it does not lie within the file. 0 also for a file that is
 * none, or cannot be read: LevelDB finds that itself. */
int leveldb_table_check(const char *path, struct err *e);

#endif
