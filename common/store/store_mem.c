/* The store within one process: a hash table, a mutex, and one condition that every write signals.
 *
 * "mem://name" is one space for all that open the name while at least one has it open; "mem://" is a fresh one. Waiters
 * use CLOCK_MONOTONIC deadlines. An abort concerns one handle, so it is a flag of the handle, set under the space's
 * mutex.
 */
#include "common/base/seeded_hash.h"
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "common/args/args.h"
#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/store/store.h"

struct entry {
    UT_hash_handle hh;
    struct buf value;
    char key[];
};

struct space {
    struct space *next; /* of the named ones */
    char *name;         /* NULL: nobody else can open it */
    int users;          /* under spaces_mutex */
    pthread_mutex_t mutex;
    pthread_cond_t written;
    struct entry *entries;
};

struct mem_store {
    struct store store;
    struct space *space;
    bool aborted; /* under space->mutex */
};

static pthread_mutex_t spaces_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct space *spaces; /* the named ones */

static struct space *space_create(const char *name)
{
    pthread_condattr_t monotonic;
    struct space *sp = calloc(1, sizeof *sp);
    if (!sp || (name[0] && !(sp->name = strdup(name)))) {
        free(sp);
        return NULL;
    }
    pthread_mutex_init(&sp->mutex, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&sp->written, &monotonic);
    pthread_condattr_destroy(&monotonic);
    return sp;
}

static void remove_entry(struct space *sp, struct entry *en)
{
    HASH_DEL(sp->entries, en);
    buf_free(&en->value);
    free(en);
}

static void space_destroy(struct space *sp)
{
    struct entry *en, *next;
    HASH_ITER (hh, sp->entries, en, next) {
        remove_entry(sp, en);
    }
    pthread_cond_destroy(&sp->written);
    pthread_mutex_destroy(&sp->mutex);
    free(sp->name);
    free(sp);
}

static struct space *space_acquire(const char *name)
{
    struct space *sp = NULL;
    pthread_mutex_lock(&spaces_mutex);
    if (name[0])
        LL_FOREACH (spaces, sp) {
            if (strcmp(sp->name, name) == 0)
                break;
        }
    if (!sp && (sp = space_create(name)) && sp->name)
        LL_PREPEND(spaces, sp);
    if (sp)
        sp->users++;
    pthread_mutex_unlock(&spaces_mutex);
    return sp;
}

static void space_release(struct space *sp)
{
    pthread_mutex_lock(&spaces_mutex);
    bool last = --sp->users == 0;
    if (last && sp->name)
        LL_DELETE(spaces, sp);
    pthread_mutex_unlock(&spaces_mutex);
    if (last)
        space_destroy(sp);
}

static int mem_open(struct store **ret, const char *name, const struct store_options *o, struct err *e)
{
    struct mem_store *m = calloc(1, sizeof *m);
    if (!m || !(m->space = space_acquire(name))) {
        free(m);
        return err_set(e, -ENOMEM, "open store 'mem://%s': out of memory", name);
    }
    m->store.ops = &store_mem_ops;
    *ret = &m->store;
    return 0;
}

static void mem_close(struct store *s)
{
    struct mem_store *m = (struct mem_store *)s;
    space_release(m->space);
    free(m);
}

static void mem_abort(struct store *s)
{
    struct mem_store *m = (struct mem_store *)s;
    pthread_mutex_lock(&m->space->mutex);
    m->aborted = true;
    pthread_cond_broadcast(&m->space->written);
    pthread_mutex_unlock(&m->space->mutex);
}

/* Lock the space, unless this handle was aborted. */
static int enter(struct store *s, struct space **ret, struct err *e)
{
    struct mem_store *m = (struct mem_store *)s;
    pthread_mutex_lock(&m->space->mutex);
    if (m->aborted) {
        pthread_mutex_unlock(&m->space->mutex);
        return err_set(e, -ECANCELED, "the store was aborted");
    }
    *ret = m->space;
    return 0;
}

static int leave(struct space *sp, int rc)
{
    pthread_mutex_unlock(&sp->mutex);
    return rc;
}

static struct entry *find_entry(struct space *sp, const char *key)
{
    struct entry *en;
    HASH_FIND_STR(sp->entries, key, en);
    return en;
}

/* Make or overwrite an entry and wake the waiters; the old value stays when memory is short. */
static int put_value(struct space *sp, const char *key, const void *v, size_t n, struct err *e)
{
    struct buf value = {0};
    struct entry *en = find_entry(sp, key);
    size_t key_size = strlen(key) + 1;
    int rc = buf_add(&value, v, n);
    if (rc < 0)
        return err_set(e, rc, "a value of %zu bytes does not fit", n);
    if (!en) {
        if (!(en = calloc(1, sizeof *en + key_size))) {
            buf_free(&value);
            return err_set(e, -ENOMEM, "out of memory");
        }
        memcpy(en->key, key, key_size);
        HASH_ADD_KEYPTR(hh, sp->entries, en->key, key_size - 1, en);
        if (!en->hh.tbl) {
            free(en);
            buf_free(&value);
            return err_set(e, -ENOMEM, "out of memory");
        }
    }
    buf_free(&en->value);
    en->value = value;
    pthread_cond_broadcast(&sp->written);
    return 0;
}

/* Append the entry's value to *out. */
static int copy_out(const struct entry *en, struct buf *out, struct err *e)
{
    int rc = out && en ? buf_add(out, en->value.data, en->value.len) : 0;
    return rc < 0 ? err_set(e, rc, "a value of %zu bytes does not fit", en->value.len) : 0;
}

static int mem_get(struct store *s, const char *key, struct buf *value, int64_t timeout_ms, struct err *e)
{
    struct space *sp = NULL;
    TRY(enter(s, &sp, e));
    struct entry *en = find_entry(sp, key);
    return leave(sp, en ? copy_out(en, value, e) : err_set(e, -ENOENT, "no such key"));
}

static int mem_set(struct store *s, const char *key, const void *v, size_t n, int64_t timeout_ms, struct err *e)
{
    struct space *sp = NULL;
    TRY(enter(s, &sp, e));
    return leave(sp, put_value(sp, key, v, n, e));
}

static int add_locked(struct space *sp, const char *key, int64_t d, int64_t *ret, struct err *e)
{
    struct entry *en = find_entry(sp, key);
    int64_t v = 0;
    char text[24];
    bool text_only = !en || strlen(en->value.data) == en->value.len;
    if (!text_only || (en && parse_i64(en->value.data, "value", INT64_MIN, INT64_MAX, &v, NULL) < 0))
        return err_set(e, -EINVAL, "the value is not an integer");
    if (__builtin_add_overflow(v, d, &v))
        return err_set(e, -EINVAL, "the sum does not fit 64 bits");
    TRY(put_value(sp, key, text, (size_t)snprintf(text, sizeof text, "%" PRId64, v), e));
    *ret = v;
    return 0;
}

static int mem_add(struct store *s, const char *key, int64_t d, int64_t *ret, int64_t timeout_ms, struct err *e)
{
    struct space *sp = NULL;
    TRY(enter(s, &sp, e));
    return leave(sp, add_locked(sp, key, d, ret, e));
}

static bool all_there(struct space *sp, const char *const *keys, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!find_entry(sp, keys[i]))
            return false;
    return true;
}

static int mem_wait(struct store *s, const char *const *keys, size_t n, int64_t timeout_ms, struct err *e)
{
    struct mem_store *m = (struct mem_store *)s;
    struct space *sp = NULL;
    const struct timespec until = clock_timespec(clock_deadline(timeout_ms));
    TRY(enter(s, &sp, e));
    int rc = 0;
    while (!all_there(sp, keys, n)) {
        if (rc != 0)
            return leave(sp, err_set(e, -ETIMEDOUT, "not there after %" PRId64 " ms", timeout_ms));
        rc = pthread_cond_timedwait(&sp->written, &sp->mutex, &until);
        if (m->aborted)
            return leave(sp, err_set(e, -ECANCELED, "the store was aborted"));
    }
    return leave(sp, 0);
}

const struct store_ops store_mem_ops = {
    .scheme = "mem",
    .open = mem_open,
    .close = mem_close,
    .abort = mem_abort,
    .get = mem_get,
    .set = mem_set,
    .add = mem_add,
    .wait = mem_wait,
};
