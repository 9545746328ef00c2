/* Records in an LMDB environment, read only: all from one snapshot, taken at open and kept until close. Whoever writes
 * to the environment meanwhile changes nothing here (and cannot reuse a page of the snapshot: what he replaces makes
 * the file longer). The keys are listed once, in the order of the data base; values are read when asked for. */
#include <errno.h>
#include <lmdb.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/base/log.h"
#include "worker/data/db/lmdb_lock.h"
#include "worker/data/db/record.h"
#include "worker/data/sets/dataset_impl.h"

struct lmdb {
    struct dataset base; /* first */
    char *path;
    bool subdir; /* path is a folder with data.mdb; else the file itself (MDB_NOSUBDIR) */
    MDB_env *env;
    pthread_mutex_t lock; /* of the transaction, which one thread at a time may use; what it found stays readable */
    MDB_txn *txn;
    MDB_dbi dbi;
    uintptr_t map_begin, map_end; /* where the file lies in memory, as far as it has pages; 0: unknown */
    struct keys keys;
};

/* code: ERR_DATA where the data base is none; -EIO where one that was opened cannot be read any more. */
static int fault(struct err *e, int code, int rc, const char *path)
{
    if (rc == ENOMEM)
        return err_set(e, -ENOMEM, "no memory to read '%s'", path);
    return err_set(e, code, "cannot read the LMDB '%s': %s", path, mdb_strerror(rc));
}

/* The library takes the size of a value from the file as it stands there. */
static bool is_within(const struct lmdb *l, const MDB_val *v)
{
    const uintptr_t at = (uintptr_t)v->mv_data;
    return !l->map_end || (at >= l->map_begin && at <= l->map_end && v->mv_size <= l->map_end - at);
}

static int lmdb_read(struct dataset *d, size_t i, struct buf *data, int *label, struct err *e)
{
    struct lmdb *l = (struct lmdb *)d;
    MDB_val key, value;
    key.mv_data = (char *)keys_at(&l->keys, i, &key.mv_size);
    pthread_mutex_lock(&l->lock);
    const int rc = mdb_get(l->txn, l->dbi, &key, &value);
    pthread_mutex_unlock(&l->lock);
    if (rc)
        return fault(e, -EIO, rc, l->path); /* the snapshot had it when its keys were listed */
    if (!is_within(l, &value))
        return err_set(e, ERR_DATA, "its %zu bytes reach beyond the end of the LMDB", value.mv_size);
    TRY(record_read(value.mv_data, value.mv_size, data, label, e));
    return dataset_take_label(d, label, e);
}

static const char *lmdb_sample_name(struct dataset *d, size_t i)
{
    const struct lmdb *l = (const struct lmdb *)d;
    return keys_name(&l->keys, l->path, i);
}

static void lmdb_close(struct dataset *d)
{
    struct lmdb *l = (struct lmdb *)d;
    if (l->txn)
        mdb_txn_abort(l->txn);
    if (l->env)
        mdb_env_close(l->env);
    pthread_mutex_destroy(&l->lock);
    keys_free(&l->keys);
    dataset_free_classes(d);
    free(l->path);
    free(l);
}

static const struct dataset_ops lmdb_ops = {
    .name = "lmdb",
    .read = lmdb_read,
    .sample_name = lmdb_sample_name,
    .close = lmdb_close,
};

/* The library maps the file and trusts it: pages beyond its end would kill us with SIGBUS. */
static int check_length(const struct lmdb *l, struct err *e)
{
    char file[4096];
    MDB_envinfo info;
    MDB_stat st;
    struct stat file_st;
    snprintf(file, sizeof file, "%s%s", l->path, l->subdir ? "/data.mdb" : "");
    mdb_env_info(l->env, &info);
    mdb_env_stat(l->env, &st);
    if (stat(file, &file_st) != 0)
        return err_errno(e, errno, "cannot read '%s'", file);
    const unsigned long long need = ((unsigned long long)info.me_last_pgno + 1) * st.ms_psize;
    if ((unsigned long long)file_st.st_size >= need)
        return 0;
    return err_set(e, ERR_DATA, "'%s' is cut short: %lld of %llu bytes", file, (long long)file_st.st_size, need);
}

/* The library does not tell where it has mapped the file: where its first key lies. Another data set may have mapped
 * it, too. */
static void find_map(struct lmdb *l, const void *inside)
{
    unsigned long begin, end;
    unsigned long long inode;
    char line[4096];
    mdb_filehandle_t fd;
    struct stat st;
    FILE *f = mdb_env_get_fd(l->env, &fd) == 0 && fstat(fd, &st) == 0 ? fopen("/proc/self/maps", "re") : NULL;
    while (f && !l->map_end && fgets(line, sizeof line, f))
        if (sscanf(line, "%lx-%lx r--s 00000000 %*s %llu", &begin, &end, &inode) == 3 && inode == st.st_ino &&
            begin <= (uintptr_t)inside && (uintptr_t)inside < end) {
            l->map_begin = begin;
            l->map_end = begin + (uintptr_t)st.st_size < end ? begin + (uintptr_t)st.st_size : end;
        }
    if (f)
        fclose(f);
}

static int take_snapshot(struct lmdb *l, struct err *e)
{
    int rc = mdb_txn_begin(l->env, NULL, MDB_RDONLY, &l->txn);
    if (rc == 0)
        rc = mdb_dbi_open(l->txn, NULL, 0, &l->dbi);
    return rc ? fault(e, ERR_DATA, rc, l->path) : 0;
}

static int list_keys(struct lmdb *l, struct err *e)
{
    MDB_cursor *cursor;
    MDB_val key, value;
    int added = 0, rc = mdb_cursor_open(l->txn, l->dbi, &cursor);
    if (rc)
        return fault(e, ERR_DATA, rc, l->path);
    while (added == 0 && (rc = mdb_cursor_get(cursor, &key, &value, MDB_NEXT)) == 0) {
        if (l->keys.n == 0)
            find_map(l, key.mv_data);
        added = keys_add(&l->keys, key.mv_data, key.mv_size, e);
    }
    mdb_cursor_close(cursor);
    return added < 0 ? added : rc == MDB_NOTFOUND ? 0 : fault(e, ERR_DATA, rc, l->path);
}

static bool has_lock(const char *path, const char *name)
{
    char file[4096];
    struct stat st;
    return snprintf(file, sizeof file, "%s%s", path, name) < (int)sizeof file && lstat(file, &st) == 0;
}

/* Without a lock file that can be written (a read-only disk, somebody else's data) nobody must write the data.
 * Whoever writes has made one: where there is none, and none is to be made, nobody does. */
static int open_env(struct lmdb *l, bool makes_nothing, struct err *e)
{
    const char *lock_name = l->subdir ? "/lock.mdb" : "-lock";
    const unsigned flags =
        MDB_RDONLY | MDB_NOTLS /* any thread may use the transaction */ | (l->subdir ? 0 : MDB_NOSUBDIR);
    const bool none = makes_nothing && !has_lock(l->path, lock_name);
    const int is_odd = none ? 0 : lmdb_lock_reserve(l->path, lock_name, e);
    if (is_odd < 0)
        return is_odd;
    if (is_odd)
        log_warn("data", "'%s%s' is a link or no regular file, and is not used: nobody must write to the data", l->path,
                 lock_name);
    for (unsigned lock = is_odd || none ? MDB_NOLOCK : 0;; lock = MDB_NOLOCK) {
        int rc = mdb_env_create(&l->env);
        if (rc == 0)
            rc = mdb_env_set_maxreaders(l->env, LMDB_LOCK_READERS);
        if (rc == 0)
            rc = mdb_env_open(l->env, l->path, flags | lock, 0644);
        if (rc == 0) {
            int dead;
            (void)mdb_reader_check(l->env, &dead); /* snapshots of processes that were killed */
            return 0;
        }
        mdb_env_close(l->env);
        l->env = NULL;
        if (lock || (rc != EACCES && rc != EROFS && rc != EPERM))
            return fault(e, ERR_DATA, rc, l->path);
    }
}

int dataset_open_lmdb(struct dataset **ret, const char *path, const struct dataset_options *o, struct err *e)
{
    struct lmdb *l = calloc(1, sizeof *l);
    if (!l)
        return err_set(e, -ENOMEM, "no memory for a data set");
    pthread_mutex_init(&l->lock, NULL);
    l->base.ops = &lmdb_ops;
    int rc = (l->path = strdup(path)) ? 0 : err_set(e, -ENOMEM, "no memory for a data set");
    l->subdir = !dataset_is_lmdb_file(path);
    if (rc == 0 && l->subdir &&
        !dataset_has_file(path, "data.mdb")) /* opening would leave a lock in a stranger's folder */
        rc = err_set(e, ERR_DATA, "'%s' is no LMDB: it holds no data.mdb", path);
    if (rc == 0)
        rc = open_env(l, o->makes_nothing, e);
    if (rc == 0)
        rc = take_snapshot(l, e); /* the file grows before there is one that needs it */
    if (rc == 0)
        rc = check_length(l, e);
    if (rc == 0)
        rc = list_keys(l, e);
    if (rc == 0 && (l->base.n = l->keys.n) == 0)
        rc = err_set(e, ERR_DATA, "'%s' holds no record", path);
    if (rc == 0)
        rc = dataset_find_classes(&l->base, path, o, e);
    if (rc < 0)
        lmdb_close(&l->base);
    else
        *ret = &l->base;
    return rc;
}
