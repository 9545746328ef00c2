#include "tests/worker/comm/shm_store.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "common/base/buf.h"
#include "common/base/err.h"

enum { ENTRIES = 64, KEY = 160, VALUE = 1024 };

struct shm_store {
    struct store base;
    pthread_mutex_t lock;
    pthread_cond_t change;
    int n;
    struct {
        char key[KEY], value[VALUE];
        size_t len;
    } entries[ENTRIES];
};

static int find(const struct shm_store *s, const char *key)
{
    for (int i = 0; i < s->n; i++)
        if (strcmp(s->entries[i].key, key) == 0)
            return i;
    return -1;
}

static int shm_get(struct store *base, const char *key, struct buf *value, int64_t timeout_ms, struct err *e)
{
    struct shm_store *s = (struct shm_store *)base;
    pthread_mutex_lock(&s->lock);
    int i = find(s, key);
    int rc = i < 0 ? err_set(e, -ENOENT, "no key '%s'", key) : buf_add(value, s->entries[i].value, s->entries[i].len);
    pthread_mutex_unlock(&s->lock);
    return rc;
}

static int shm_set(struct store *base, const char *key, const void *v, size_t n, int64_t timeout_ms, struct err *e)
{
    struct shm_store *s = (struct shm_store *)base;
    if (n > VALUE || strlen(key) >= KEY)
        return err_set(e, -E2BIG, "key '%s' or its value of %zu bytes is too long", key, n);
    pthread_mutex_lock(&s->lock);
    int i = find(s, key);
    if (i < 0 && s->n < ENTRIES)
        i = s->n++;
    if (i >= 0) {
        strcpy(s->entries[i].key, key);
        memcpy(s->entries[i].value, v, n);
        s->entries[i].len = n;
        pthread_cond_broadcast(&s->change);
    }
    pthread_mutex_unlock(&s->lock);
    return i < 0 ? err_set(e, -ENOSPC, "more than %d keys", ENTRIES) : 0;
}

static bool all_there(const struct shm_store *s, const char *const *keys, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (find(s, keys[i]) < 0)
            return false;
    return true;
}

static int shm_wait(struct store *base, const char *const *keys, size_t n, int64_t timeout_ms, struct err *e)
{
    struct shm_store *s = (struct shm_store *)base;
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    int64_t ns = until.tv_nsec + timeout_ms % 1000 * 1000000;
    until.tv_sec += timeout_ms / 1000 + ns / 1000000000;
    until.tv_nsec = ns % 1000000000;
    int rc = 0;
    pthread_mutex_lock(&s->lock);
    while (rc == 0 && !all_there(s, keys, n))
        rc = pthread_cond_timedwait(&s->change, &s->lock, &until);
    pthread_mutex_unlock(&s->lock);
    return rc ? err_set(e, -rc, "%zu keys did not come within %lld ms", n, (long long)timeout_ms) : 0;
}

static const struct store_ops shm_ops = {.scheme = "shm", .get = shm_get, .set = shm_set, .wait = shm_wait};

struct store *shm_store_open(void)
{
    struct shm_store *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (s == MAP_FAILED)
        abort();
    s->base.ops = &shm_ops;
    pthread_mutexattr_t m;
    pthread_mutexattr_init(&m);
    pthread_mutexattr_setpshared(&m, PTHREAD_PROCESS_SHARED);
    pthread_mutex_init(&s->lock, &m);
    pthread_condattr_t c;
    pthread_condattr_init(&c);
    pthread_condattr_setpshared(&c, PTHREAD_PROCESS_SHARED);
    pthread_condattr_setclock(&c, CLOCK_MONOTONIC);
    pthread_cond_init(&s->change, &c);
    return &s->base;
}

void shm_store_close(struct store *s)
{
    munmap(s, sizeof(struct shm_store));
}
