/* Writes records into an LMDB. */
#include <errno.h>
#include <lmdb.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "common/base/err.h"
#include "worker/data/db/db_writer.h"

#define MAP_START ((size_t)1 << 30)
#define COMMIT_EVERY 4096 /* records */

struct writer {
    struct db_writer base; /* first */
    MDB_env *env;
    MDB_txn *txn;
    MDB_dbi dbi;
    size_t map, uncommitted, bytes; /* of the map; records and bytes of the open transaction */
};

static int fault(struct err *e, int rc)
{
    return rc == ENOMEM   ? err_set(e, -ENOMEM, "no memory to write an LMDB")
           : rc == ENOSPC ? err_set(e, -ENOSPC, "the disk is full")
                          : err_set(e, ERR_OUTPUT, "cannot write the LMDB: %s", mdb_strerror(rc));
}

static int begin_transaction(struct writer *w, struct err *e)
{
    int rc = mdb_txn_begin(w->env, NULL, 0, &w->txn);
    if (rc == 0)
        rc = mdb_dbi_open(w->txn, NULL, 0, &w->dbi);
    return rc ? fault(e, rc) : 0;
}

static int commit(struct writer *w, struct err *e)
{
    int rc = w->txn ? mdb_txn_commit(w->txn) : 0;
    w->txn = NULL;
    w->uncommitted = w->bytes = 0;
    return rc ? fault(e, rc) : 0;
}

/* The map must hold what is there and the next transaction: it may be enlarged between transactions only. */
static int make_room(struct writer *w, size_t n, struct err *e)
{
    MDB_envinfo info;
    MDB_stat st;
    mdb_env_info(w->env, &info);
    mdb_env_stat(w->env, &st);
    const size_t used = (info.me_last_pgno + 1) * st.ms_psize;
    if (used + 2 * n + MAP_START / 4 <= w->map)
        return 0;
    while (used + 2 * n + MAP_START / 4 > w->map)
        w->map *= 2;
    int rc = mdb_env_set_mapsize(w->env, w->map);
    return rc ? fault(e, rc) : 0;
}

static int lmdb_put(struct db_writer *base, const void *key, size_t key_n, const void *value, size_t n, struct err *e)
{
    struct writer *w = (struct writer *)base;
    MDB_val k = {.mv_size = key_n, .mv_data = (void *)key}, v = {.mv_size = n, .mv_data = (void *)value};
    if (w->uncommitted == COMMIT_EVERY || w->bytes + n > MAP_START / 16)
        TRY(commit(w, e));
    if (!w->txn) {
        TRY(make_room(w, n, e));
        TRY(begin_transaction(w, e));
    }
    w->uncommitted++;
    w->bytes += n;
    int rc = mdb_put(w->txn, w->dbi, &k, &v, MDB_APPEND);
    return rc ? fault(e, rc) : 0;
}

static int lmdb_finish(struct db_writer *base, struct err *e)
{
    struct writer *w = (struct writer *)base;
    TRY(commit(w, e));
    int rc = mdb_env_sync(w->env, 1);
    return rc ? fault(e, rc) : 0;
}

static void lmdb_close(struct db_writer *base)
{
    struct writer *w = (struct writer *)base;
    if (w->txn)
        mdb_txn_abort(w->txn);
    if (w->env)
        mdb_env_close(w->env);
    free(w);
}

static int lmdb_open(struct db_writer **ret, const char *path, struct err *e)
{
    struct writer *w = calloc(1, sizeof *w);
    if (!w)
        return err_set(e, -ENOMEM, "no memory to write an LMDB");
    w->base.ops = &db_writer_lmdb;
    w->map = MAP_START;
    int rc = mkdir(path, 0777) == 0 ? mdb_env_create(&w->env) : errno;
    if (rc == 0)
        rc = mdb_env_set_mapsize(w->env, w->map);
    if (rc == 0)
        rc = mdb_env_open(w->env, path, MDB_NOSYNC, 0666);
    if (rc == 0) {
        *ret = &w->base;
        return 0;
    }
    lmdb_close(&w->base);
    return fault(e, rc);
}

const struct db_writer_ops db_writer_lmdb = {
    .name = "lmdb",
    .open = lmdb_open,
    .put = lmdb_put,
    .finish = lmdb_finish,
    .close = lmdb_close,
};
