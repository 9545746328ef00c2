/* A LevelDB to read from that leaves the original alone.
 *
 * Opening a LevelDB locks it against every other process and rewrites its manifest and log, even to read. Its tables
 * never change, so a reader opens a folder of its own with links to the original's files: any number of processes read
 * at once, also from a medium that cannot be written. Whoever opened the original itself still holds its lock; then it
 * may change, and no view is made. */
#ifndef CRUN_WORKER_DATA_LEVELDB_VIEW_H
#define CRUN_WORKER_DATA_LEVELDB_VIEW_H

struct err;

/* A fresh folder below the system's temporary one; *ret is malloc'ed. ERR_DATA: in use, not readable; ERR_OUTPUT: no
 * room for the view. */
int leveldb_view_make(const char *path, char **ret, struct err *e);

/* Removes the folder and frees its name; NULL allowed. */
void leveldb_view_remove(char *view);

#endif
