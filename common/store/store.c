/* The store's backends by URL scheme, and the calls that are made of their operations. */
#include "common/store/store.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/err.h"

static const struct store_ops *const backends[] = {&store_resp_ops,     &store_tcp_ops,    &store_mem_ops,
                                                   &store_redis_ops,    &store_rediss_ops, &store_sentinel_ops,
                                                   &store_sentinels_ops};

int store_open(struct store **ret, const char *url, const struct store_options *o, struct err *e)
{
    static const struct store_options defaults;
    char known[128] = "";
    for (size_t i = 0; i < sizeof backends / sizeof *backends; i++) {
        size_t n = strlen(backends[i]->scheme), used = strlen(known);
        if (strncmp(url, backends[i]->scheme, n) == 0 && strncmp(url + n, "://", 3) == 0)
            return backends[i]->open(ret, url + n + 3, o ? o : &defaults, e);
        snprintf(known + used, sizeof known - used, "%s%s://", i ? ", " : "", backends[i]->scheme);
    }
    return err_set(e, -EINVAL, "store '%s': unknown kind, expected one of %s", url, known);
}

void store_close(struct store *s)
{
    if (s)
        s->ops->close(s);
}

void store_abort(struct store *s)
{
    s->ops->abort(s);
}

/* Put the operation and the key in front of a backend's error. */
static int with_context(int rc, const char *operation, const char *key, struct err *e)
{
    if (rc < 0 && e)
        err_wrap(e, "store: %s '%s'", operation, key);
    return rc;
}

int store_get(struct store *s, const char *key, struct buf *value, int64_t timeout_ms, struct err *e)
{
    return with_context(s->ops->get(s, key, value, timeout_ms, e), "get", key, e);
}

int store_set(struct store *s, const char *key, const void *value, size_t len, int64_t timeout_ms, struct err *e)
{
    return with_context(s->ops->set(s, key, value, len, timeout_ms, e), "set", key, e);
}

int store_add(struct store *s, const char *key, int64_t delta, int64_t *ret, int64_t timeout_ms, struct err *e)
{
    return with_context(s->ops->add(s, key, delta, ret, timeout_ms, e), "add to", key, e);
}

int store_wait(struct store *s, const char *const *keys, size_t n, int64_t timeout_ms, struct err *e)
{
    return n == 0 ? 0 : with_context(s->ops->wait(s, keys, n, timeout_ms, e), "wait for", keys[0], e);
}

int store_wait_get(struct store *s, const char *key, struct buf *value, int64_t timeout_ms, struct err *e)
{
    int64_t deadline = clock_deadline(timeout_ms);
    TRY(store_wait(s, &key, 1, timeout_ms, e));
    return store_get(s, key, value, clock_left(deadline), e);
}
