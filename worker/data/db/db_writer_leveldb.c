/* Writes records into a LevelDB. */
#include <errno.h>
#include <leveldb/c.h>
#include <stdlib.h>

#include "common/base/err.h"
#include "worker/data/db/db_writer.h"

#define BATCH_BYTES (8u << 20)

struct writer {
    struct db_writer base; /* first */
    leveldb_options_t *options;
    leveldb_writeoptions_t *writing;
    leveldb_writebatch_t *batch;
    leveldb_t *db;
    size_t bytes; /* in the batch */
};

static int fault(struct err *e, char *why)
{
    int rc = err_set(e, ERR_OUTPUT, "cannot write the LevelDB: %s", why);
    leveldb_free(why);
    return rc;
}

static int write_batch(struct writer *w, int sync, struct err *e)
{
    char *why = NULL;
    leveldb_writeoptions_set_sync(w->writing, (unsigned char)sync);
    leveldb_write(w->db, w->writing, w->batch, &why);
    leveldb_writebatch_clear(w->batch);
    w->bytes = 0;
    return why ? fault(e, why) : 0;
}

static int level_put(struct db_writer *base, const void *key, size_t key_n, const void *value, size_t n, struct err *e)
{
    struct writer *w = (struct writer *)base;
    leveldb_writebatch_put(w->batch, key, key_n, value, n);
    w->bytes += key_n + n;
    return w->bytes >= BATCH_BYTES ? write_batch(w, 0, e) : 0;
}

static int level_finish(struct db_writer *base, struct err *e)
{
    return write_batch((struct writer *)base, 1, e);
}

static void level_close(struct db_writer *base)
{
    struct writer *w = (struct writer *)base;
    if (w->db)
        leveldb_close(w->db);
    leveldb_writebatch_destroy(w->batch);
    leveldb_writeoptions_destroy(w->writing);
    leveldb_options_destroy(w->options);
    free(w);
}

static int level_open(struct db_writer **ret, const char *path, struct err *e)
{
    struct writer *w = calloc(1, sizeof *w);
    char *why = NULL;
    if (!w)
        return err_set(e, -ENOMEM, "no memory to write a LevelDB");
    w->base.ops = &db_writer_leveldb;
    w->options = leveldb_options_create();
    w->writing = leveldb_writeoptions_create();
    w->batch = leveldb_writebatch_create();
    leveldb_options_set_create_if_missing(w->options, 1);
    leveldb_options_set_error_if_exists(w->options, 1);
    leveldb_options_set_compression(w->options, leveldb_no_compression); /* pictures are compressed already */
    w->db = leveldb_open(w->options, path, &why);
    if (w->db) {
        *ret = &w->base;
        return 0;
    }
    level_close(&w->base);
    return fault(e, why);
}

const struct db_writer_ops db_writer_leveldb = {
    .name = "leveldb",
    .open = level_open,
    .put = level_put,
    .finish = level_finish,
    .close = level_close,
};
