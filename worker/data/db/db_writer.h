/* A new data base of records, LMDB or LevelDB, written in the order of its keys. Private to worker/data. */
#ifndef CRUN_WORKER_DATA_DB_WRITER_H
#define CRUN_WORKER_DATA_DB_WRITER_H

#include <stddef.h>

struct err;
struct db_writer;

struct db_writer_ops {
    const char *name;
    int (*open)(struct db_writer **ret, const char *path, struct err *e); /* a folder that does not exist yet */
    int (*put)(struct db_writer *w, const void *key, size_t key_n, const void *value, size_t n, struct err *e);
    int (*finish)(struct db_writer *w, struct err *e); /* all of it is on the disk */
    void (*close)(struct db_writer *w);                /* finished or not */
};

struct db_writer {
    const struct db_writer_ops *ops; /* first member of every writer's struct */
};

extern const struct db_writer_ops db_writer_lmdb, db_writer_leveldb; /* open: -ENOTSUP where the build lacks it */

#endif
