/* Records in a LevelDB, read through a view of its files (leveldb_view.h) by any number of threads. The keys are listed
 * once at open, which reads the whole data base through (a LevelDB keeps keys and values in the same blocks). */
#include <leveldb/c.h>

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/base/err.h"
#include "worker/data/db/leveldb_view.h"
#include "worker/data/db/record.h"
#include "worker/data/sets/dataset_impl.h"

struct level {
    struct dataset base; /* first */
    char *path;
    struct leveldb_view view;
    leveldb_options_t *options;
    leveldb_readoptions_t *reading;
    leveldb_t *db;
    struct keys keys;
};

static int level_read(struct dataset *d, size_t i, struct buf *data, int *label, struct err *e)
{
    struct level *l = (struct level *)d;
    char *why = NULL;
    size_t key_n, n = 0;
    const char *key = keys_at(&l->keys, i, &key_n);
    char *value = leveldb_get(l->db, l->reading, key, key_n, &n, &why);
    int rc;
    if (why) /* a block is damaged, or the disk fails */
        rc = err_set(e, strncmp(why, "Corruption", 10) == 0 ? ERR_DATA : -EIO, "cannot read the LevelDB '%s': %s",
                     l->path, why);
    else if (!value)
        rc = err_set(e, ERR_DATA, "the record has gone");
    else
        rc = record_read(value, n, data, label, e);
    leveldb_free(value);
    leveldb_free(why);
    return rc < 0 ? rc : dataset_take_label(d, label, e);
}

static const char *level_sample_name(struct dataset *d, size_t i)
{
    const struct level *l = (const struct level *)d;
    return keys_name(&l->keys, l->path, i);
}

static void level_close(struct dataset *d)
{
    struct level *l = (struct level *)d;
    if (l->db)
        leveldb_close(l->db);
    if (l->reading)
        leveldb_readoptions_destroy(l->reading);
    if (l->options)
        leveldb_options_destroy(l->options);
    keys_free(&l->keys);
    dataset_free_classes(d);
    leveldb_view_remove(&l->view);
    free(l->path);
    free(l);
}

static const struct dataset_ops level_ops = {
    .name = "leveldb",
    .read = level_read,
    .sample_name = level_sample_name,
    .close = level_close,
};

static bool is_full(const char *why)
{
    return strstr(why, strerror(ENOSPC)) || strstr(why, strerror(EDQUOT));
}

static int open_db(struct level *l, struct err *e)
{
    char *why = NULL;
    l->options = leveldb_options_create();
    leveldb_options_set_paranoid_checks(l->options, 1); /* else what is damaged in its log is left out without a word */
    l->reading = leveldb_readoptions_create();
    leveldb_readoptions_set_fill_cache(l->reading, 0);
    leveldb_readoptions_set_verify_checksums(l->reading, 1);
    l->db = leveldb_open(l->options, l->view.dir, &why);
    if (l->db) {
        leveldb_view_freeze(&l->view);
        return 0;
    }
    const int rc = is_full(why)
                       ? err_set(e, ERR_OUTPUT,
                                 "no room to open the LevelDB '%s': %s; what is still in its log is written to "
                                 "$TMPDIR: let that name a larger folder",
                                 l->path, why)
                       : err_set(e, ERR_DATA, "cannot open the LevelDB '%s': %s", l->path, why);
    leveldb_free(why);
    return rc;
}

static int list_keys(struct level *l, struct err *e)
{
    char *why = NULL;
    int rc = 0;
    leveldb_iterator_t *it = leveldb_create_iterator(l->db, l->reading);
    for (leveldb_iter_seek_to_first(it); rc == 0 && leveldb_iter_valid(it); leveldb_iter_next(it)) {
        size_t n;
        const char *key = leveldb_iter_key(it, &n);
        rc = keys_add(&l->keys, key, n, e);
    }
    leveldb_iter_get_error(it, &why);
    leveldb_iter_destroy(it);
    if (why && rc == 0)
        rc = err_set(e, ERR_DATA, "cannot read the LevelDB '%s': %s", l->path, why);
    leveldb_free(why);
    return rc;
}

int dataset_open_leveldb(struct dataset **ret, const char *path, const struct dataset_options *o, struct err *e)
{
    struct level *l = calloc(1, sizeof *l);
    if (!l)
        return err_set(e, -ENOMEM, "no memory for a data set");
    l->base.ops = &level_ops;
    l->view.lock_fd = -1;
    int rc = (l->path = strdup(path)) ? 0 : err_set(e, -ENOMEM, "no memory for a data set");
    if (rc == 0 && !dataset_has_file(path, "CURRENT")) /* opening would leave files in a stranger's folder */
        rc = err_set(e, ERR_DATA, "'%s' is no LevelDB: it holds no CURRENT", path);
    if (rc == 0)
        rc = leveldb_view_make(&l->view, path, e);
    if (rc == 0)
        rc = open_db(l, e);
    if (rc == 0)
        rc = list_keys(l, e);
    if (rc == 0 && (l->base.n = l->keys.n) == 0)
        rc = err_set(e, ERR_DATA, "'%s' holds no record", path);
    if (rc == 0)
        rc = dataset_find_classes(&l->base, path, o, e);
    if (rc < 0)
        level_close(&l->base);
    else
        *ret = &l->base;
    return rc;
}
