/* A LevelDB to read from that leaves the original alone.
 *
 * Opening a LevelDB locks it against every other process and rewrites its manifest and log, even to read. Its tables
 * never change, so a reader opens a folder of its own with links to the original's files: any number of processes read
 * at once, also from a medium that cannot be written. Whoever opens the original itself removes tables that the links
 * lead to, once he has merged them: so a view shares a lock on it with other views, which LevelDB's own cannot be had
 * beside, and none is made of a data base that is open. One without the file LOCK was never opened, and is not
 * locked. */
#ifndef CRUN_WORKER_DATA_LEVELDB_VIEW_H
#define CRUN_WORKER_DATA_LEVELDB_VIEW_H

struct err;

struct leveldb_view {
    char *dir;   /* a fresh folder below the system's temporary one */
    int lock_fd; /* of the original; -1: none */
};

/* ERR_DATA: in use, not readable; ERR_OUTPUT: no room for the view. */
int leveldb_view_make(struct leveldb_view *v, const char *path, struct err *e);

/* Of a view that LevelDB has open: it writes no more tables there. What is read often it merges, also where nobody
 * writes, and so copies a data base whose keys were not written in order into the view, table by table. The names of
 * its next tables are taken, by folders: it gives up at the first of them, and reads on. */
void leveldb_view_freeze(const struct leveldb_view *v);

/* Removes the folder; one that was never made ({.lock_fd = -1}), too. */
void leveldb_view_remove(struct leveldb_view *v);

#endif
