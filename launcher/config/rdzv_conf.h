/* --rdzv-conf: key=value,key=value, as torchrun takes them. Pure. */
#ifndef CRUN_LAUNCHER_RDZV_CONF_H
#define CRUN_LAUNCHER_RDZV_CONF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;

/* Seconds, kept in ms: key, field, default, meaning. Defaults are torchrun's but for the heartbeat (torchrun: 5 s, 3
 * times). */
#define RDZV_CONF_TIMES(X)                                                                                             \
    X(join_timeout, 600000, "how long a round may take to come together, and the rendezvous to be found")              \
    X(last_call_timeout, 30000, "wait for further nodes once MIN are there")                                           \
    X(close_timeout, 30000, "how long a crun that hosts stays at the end until all nodes know it")                     \
    X(keep_alive_interval, 1000, "time between two signs of life")                                                     \
    X(daemon_grace, 60000, "how long workers run on while the rendezvous is gone and their group is whole")

/* torchrun's keys that mean nothing here; taken, so that its command lines work. */
#define RDZV_CONF_UNUSED(X)                                                                                            \
    X(heartbeat_timeout)                                                                                               \
    X(read_timeout)                                                                                                    \
    X(use_libuv)

#define RDZV_CONF_PLUS_1(key) +1
enum { RDZV_CONF_UNUSED_N = 0 RDZV_CONF_UNUSED(RDZV_CONF_PLUS_1) };

struct rdzv_conf {
#define X(key, def, text) int64_t key##_ms;
    RDZV_CONF_TIMES(X)
#undef X
    int64_t keep_alive_max_attempt; /* signs of life that may fail in a row: 3 */
    int is_host;                    /* -1 not set, 0, 1 */
    int64_t port;                   /* where a node listens that leads over a Redis or a folder; 0: any */
    int64_t rank;                   /* -1; the same as --node-rank */
    int allow_unsafe;               /* -1 not set, 0, 1: a Redis that may lose what it acknowledged is accepted */
    int64_t max_lag_ms;             /* the Redis' min-replicas-max-lag, where it does not say; 0: not given */
    bool store_type_file;           /* endpoint is a path */
    bool join_timeout_typed;
    const char *unused[RDZV_CONF_UNUSED_N]; /* those that were given; NULL: not; static storage */
    char unknown[160]; /* a key that nobody knows, and what may be meant; "": none. The first one */
};

/* text may be NULL or empty: defaults. `timeout` is another word for join_timeout (torchrun's static backend). Keys
 * that are not known are passed over, as by torchrun, and reported. ERR_USAGE names the key. */
int rdzv_conf_parse(const char *text, struct rdzv_conf *ret, struct err *e);

/* The pairs in text (NULL: none), where more can follow behind a comma: without quotes around the whole, and without a
 * comma at the end. In text; *ret_n bytes. */
const char *rdzv_conf_pairs(const char *text, size_t *ret_n);

#endif
