/* A name-space: the same store with a prefix before every key. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "common/store/store.h"

struct prefix_store {
    struct store store;
    struct store *base; /* borrowed */
    char prefix[];
};

/* The key with the prefix in front; the caller frees it; NULL: no memory. */
static char *extend(struct store *s, const char *key, struct err *e)
{
    char *k;
    if (asprintf(&k, "%s%s", ((struct prefix_store *)s)->prefix, key) >= 0)
        return k;
    err_set(e, -ENOMEM, "out of memory");
    return NULL;
}

static struct store *base_of(struct store *s)
{
    return ((struct prefix_store *)s)->base;
}

/* rc = call, in which `k` is the extended key. */
#define WITH_KEY(call)                                                                                                 \
    do {                                                                                                               \
        struct store *b = base_of(s);                                                                                  \
        char *k = extend(s, key, e);                                                                                   \
        if (!k)                                                                                                        \
            return -ENOMEM;                                                                                            \
        int rc = b->ops->call;                                                                                         \
        free(k);                                                                                                       \
        return rc;                                                                                                     \
    } while (0)

static int prefix_get(struct store *s, const char *key, struct buf *value, int64_t timeout_ms, struct err *e)
{
    WITH_KEY(get(b, k, value, timeout_ms, e));
}

static int prefix_set(struct store *s, const char *key, const void *v, size_t n, int64_t timeout_ms, struct err *e)
{
    WITH_KEY(set(b, k, v, n, timeout_ms, e));
}

static int prefix_add(struct store *s, const char *key, int64_t d, int64_t *ret, int64_t timeout_ms, struct err *e)
{
    WITH_KEY(add(b, k, d, ret, timeout_ms, e));
}

typedef int many_fn(struct store *s, const char *const *keys, size_t n, int64_t timeout_ms, struct err *e);

static int with_keys(struct store *s, many_fn *call, const char *const *keys, size_t n, int64_t timeout_ms,
                     struct err *e)
{
    char **k = calloc(n, sizeof *k);
    size_t made = 0;
    if (k)
        while (made < n && (k[made] = extend(s, keys[made], e)))
            made++;
    int rc = k && made == n ? call(base_of(s), (const char *const *)k, n, timeout_ms, e)
                            : err_set(e, -ENOMEM, "out of memory");
    while (made > 0)
        free(k[--made]);
    free(k);
    return rc;
}

static int prefix_wait(struct store *s, const char *const *keys, size_t n, int64_t timeout_ms, struct err *e)
{
    return with_keys(s, base_of(s)->ops->wait, keys, n, timeout_ms, e);
}

static void prefix_close(struct store *s)
{
    free(s);
}

static void prefix_abort(struct store *s)
{
    store_abort(base_of(s));
}

/* Without a scheme and open(): a view is made from a store, not from a URL. */
static const struct store_ops prefix_ops = {
    .close = prefix_close,
    .abort = prefix_abort,
    .get = prefix_get,
    .set = prefix_set,
    .add = prefix_add,
    .wait = prefix_wait,
};

int store_open_prefix(struct store **ret, struct store *base, const char *prefix, struct err *e)
{
    size_t n = strlen(prefix) + 1;
    struct prefix_store *p = malloc(sizeof *p + n);
    if (!p)
        return err_set(e, -ENOMEM, "open store with prefix '%s': out of memory", prefix);
    p->store.ops = &prefix_ops;
    p->base = base;
    memcpy(p->prefix, prefix, n);
    *ret = &p->store;
    return 0;
}
