/* Key-value store client: blocking calls with deadlines, the same over every backend.
 *
 * Semantics are Redis': values are binary, keys are created by the first set/add. Thread-safe, but one request at a
 * time: while one thread waits, calls of other threads on the same store wait, too (within their deadlines), so open
 * a second one for them. A call on a broken connection redials within its own deadline; set, get and wait are
 * repeated, but add is not, because it may have happened: -ECONNRESET then. Every deadline is in milliseconds from
 * the call; -ETIMEDOUT when it passes. Backends: resp:// (rendezvousd, Redis), redis://, rediss://,
 * redis+sentinel://, rediss+sentinel:// (common/net/redis_link.h), tcp:// (PyTorch's TCPStore), mem:// (in process);
 * store_open_prefix() puts a name-space in front of any of them. On a plain Redis waiters are woken by writers that
 * use this client: it publishes on the channel "__store__:<key>". */
#ifndef CRUN_COMMON_STORE_H
#define CRUN_COMMON_STORE_H

#include <stddef.h>
#include <stdint.h>

struct buf;
struct err;
struct store;

struct store_options {
    int64_t connect_timeout_ms; /* 0: 60000 */
};

/* url: "resp://host:port", "tcp://host:port" (with "?generation=1": torch before 2.2), "mem://" (a fresh one) or
 * "mem://name" (shared by all that open the name in this process). -EINVAL for an unknown scheme (with the list),
 * -ETIMEDOUT, -ECONNREFUSED after the connect timeout. */
int store_open(struct store **ret, const char *url, const struct store_options *o, struct err *e);

/* A view that puts prefix before every key; borrows base, which must outlive it. Aborting the view aborts base. */
int store_open_prefix(struct store **ret, struct store *base, const char *prefix, struct err *e);

void store_close(struct store *s); /* NULL allowed. Wakes nobody: join users first, or store_abort() */

/* From any thread: every call in progress and to come fails with -ECANCELED. */
void store_abort(struct store *s);

/* Append the value to *value. -ENOENT if the key does not exist. */
int store_get(struct store *s, const char *key, struct buf *value, int64_t timeout_ms, struct err *e);
int store_set(struct store *s, const char *key, const void *value, size_t len, int64_t timeout_ms, struct err *e);

/* Atomic counter; a missing key counts as 0. *ret: the new value. -EINVAL if the value is not an integer. */
int store_add(struct store *s, const char *key, int64_t delta, int64_t *ret, int64_t timeout_ms, struct err *e);

/* Wait until all keys exist. The server wakes us; there is no polling. */
int store_wait(struct store *s, const char *const *keys, size_t n, int64_t timeout_ms, struct err *e);

/* Wait for the key, then get it. */
int store_wait_get(struct store *s, const char *key, struct buf *value, int64_t timeout_ms, struct err *e);

/* --- for backends */
struct store_ops {
    const char *scheme;
    /* address: the URL after "scheme://" */
    int (*open)(struct store **ret, const char *address, const struct store_options *o, struct err *e);
    void (*close)(struct store *s);
    void (*abort)(struct store *s);
    int (*get)(struct store *s, const char *key, struct buf *value, int64_t timeout_ms, struct err *e);
    int (*set)(struct store *s, const char *key, const void *v, size_t n, int64_t timeout_ms, struct err *e);
    int (*add)(struct store *s, const char *key, int64_t d, int64_t *ret, int64_t timeout_ms, struct err *e);
    int (*wait)(struct store *s, const char *const *keys, size_t n, int64_t timeout_ms, struct err *e);
};

struct store {
    const struct store_ops *ops; /* first member of every backend's struct */
};

extern const struct store_ops store_tcp_ops, store_resp_ops, store_mem_ops, store_redis_ops, store_rediss_ops,
    store_sentinel_ops, store_sentinels_ops;

#endif
