/* The room rendezvousd/commands: what a RESP request does. front_resp.c hands a request to the table below; its handler
 * reads the arguments, works on the connection's key-space (rendezvousd/store) or, for RDZV.*, on the jobs
 * (rendezvousd/jobs), and writes a reply, at once or when what it waits for has come. A file a family of commands.
 *
 * The commands: one list for look-up, arity, what memory they may need and how MULTI and subscriptions treat them;
 * handlers in command_*.c. */
#ifndef CRUN_RENDEZVOUSD_COMMANDS_H
#define CRUN_RENDEZVOUSD_COMMANDS_H

struct conn;
struct request;

enum {
    COMMAND_GROWS = 1, /* refused when memory is used up; writes */
    COMMAND_OPEN = 2,  /* for clients that have not authenticated, too */
    COMMAND_WRITES = 4,
    COMMAND_NO_MULTI = 8,    /* refused between MULTI and EXEC */
    COMMAND_NOW = 16,        /* executed at once between MULTI and EXEC, not queued */
    COMMAND_SUBSCRIBED = 32, /* for subscribed clients, too */
    COMMAND_BLOCKS = 64,
    COMMAND_FULL = 128, /* not for those who may use keys only */
};

/* Which arguments are keys. */
#define COMMAND_KEYS_MASK (7 << 8)
enum {
    KEYS_ONE = 1 << 8,
    KEYS_ALL = 2 << 8,
    KEYS_PAIRS = 3 << 8,    /* key value [key value ...] */
    KEYS_BUT_LAST = 4 << 8, /* the last argument is a time */
    KEYS_TWO = 5 << 8,
    KEYS_SECOND = 6 << 8, /* after a subcommand */
};

/* handler, name, arity as Redis counts it (the name included; -n: at least n), flags */
#define COMMANDS(X)                                                                                                    \
    X(get, "get", 2, KEYS_ONE)                                                                                         \
    X(set, "set", -3, COMMAND_GROWS | KEYS_ONE)                                                                        \
    X(setnx, "setnx", 3, COMMAND_GROWS | KEYS_ONE)                                                                     \
    X(setex, "setex", 4, COMMAND_GROWS | KEYS_ONE)                                                                     \
    X(psetex, "psetex", 4, COMMAND_GROWS | KEYS_ONE)                                                                   \
    X(getset, "getset", 3, COMMAND_GROWS | KEYS_ONE)                                                                   \
    X(getdel, "getdel", 2, COMMAND_WRITES | KEYS_ONE)                                                                  \
    X(getex, "getex", -2, COMMAND_WRITES | KEYS_ONE)                                                                   \
    X(incr, "incr", 2, COMMAND_GROWS | KEYS_ONE)                                                                       \
    X(incrby, "incrby", 3, COMMAND_GROWS | KEYS_ONE)                                                                   \
    X(decr, "decr", 2, COMMAND_GROWS | KEYS_ONE)                                                                       \
    X(decrby, "decrby", 3, COMMAND_GROWS | KEYS_ONE)                                                                   \
    X(append, "append", 3, COMMAND_GROWS | KEYS_ONE)                                                                   \
    X(strlen, "strlen", 2, KEYS_ONE)                                                                                   \
    X(getrange, "getrange", 4, KEYS_ONE)                                                                               \
    X(getrange, "substr", 4, KEYS_ONE)                                                                                 \
    X(setrange, "setrange", 4, COMMAND_GROWS | KEYS_ONE)                                                               \
    X(mget, "mget", -2, KEYS_ALL)                                                                                      \
    X(mset, "mset", -3, COMMAND_GROWS | KEYS_PAIRS)                                                                    \
    X(msetnx, "msetnx", -3, COMMAND_GROWS | KEYS_PAIRS)                                                                \
    X(del, "del", -2, COMMAND_WRITES | KEYS_ALL)                                                                       \
    X(del, "unlink", -2, COMMAND_WRITES | KEYS_ALL)                                                                    \
    X(exists, "exists", -2, KEYS_ALL)                                                                                  \
    X(exists, "touch", -2, KEYS_ALL)                                                                                   \
    X(type, "type", 2, KEYS_ONE)                                                                                       \
    X(rename, "rename", 3, COMMAND_WRITES | KEYS_TWO)                                                                  \
    X(renamenx, "renamenx", 3, COMMAND_WRITES | KEYS_TWO)                                                              \
    X(keys, "keys", 2, 0)                                                                                              \
    X(scan, "scan", -2, 0)                                                                                             \
    X(randomkey, "randomkey", 1, 0)                                                                                    \
    X(dbsize, "dbsize", 1, 0)                                                                                          \
    X(flushall, "flushall", -1, COMMAND_WRITES)                                                                        \
    X(flushall, "flushdb", -1, COMMAND_WRITES)                                                                         \
    X(object, "object", -2, KEYS_SECOND)                                                                               \
    X(memory, "memory", -2, KEYS_SECOND)                                                                               \
    X(expire, "expire", -3, COMMAND_WRITES | KEYS_ONE)                                                                 \
    X(pexpire, "pexpire", -3, COMMAND_WRITES | KEYS_ONE)                                                               \
    X(expireat, "expireat", -3, COMMAND_WRITES | KEYS_ONE)                                                             \
    X(pexpireat, "pexpireat", -3, COMMAND_WRITES | KEYS_ONE)                                                           \
    X(persist, "persist", 2, COMMAND_WRITES | KEYS_ONE)                                                                \
    X(ttl, "ttl", 2, KEYS_ONE)                                                                                         \
    X(pttl, "pttl", 2, KEYS_ONE)                                                                                       \
    X(expiretime, "expiretime", 2, KEYS_ONE)                                                                           \
    X(pexpiretime, "pexpiretime", 2, KEYS_ONE)                                                                         \
    X(lpush, "lpush", -3, COMMAND_GROWS | KEYS_ONE)                                                                    \
    X(rpush, "rpush", -3, COMMAND_GROWS | KEYS_ONE)                                                                    \
    X(lpushx, "lpushx", -3, COMMAND_GROWS | KEYS_ONE)                                                                  \
    X(rpushx, "rpushx", -3, COMMAND_GROWS | KEYS_ONE)                                                                  \
    X(lpop, "lpop", -2, COMMAND_WRITES | KEYS_ONE)                                                                     \
    X(rpop, "rpop", -2, COMMAND_WRITES | KEYS_ONE)                                                                     \
    X(llen, "llen", 2, KEYS_ONE)                                                                                       \
    X(lrange, "lrange", 4, KEYS_ONE)                                                                                   \
    X(lindex, "lindex", 3, KEYS_ONE)                                                                                   \
    X(lset, "lset", 4, COMMAND_GROWS | KEYS_ONE)                                                                       \
    X(linsert, "linsert", 5, COMMAND_GROWS | KEYS_ONE)                                                                 \
    X(lrem, "lrem", 4, COMMAND_WRITES | KEYS_ONE)                                                                      \
    X(ltrim, "ltrim", 4, COMMAND_WRITES | KEYS_ONE)                                                                    \
    X(lmove, "lmove", 5, COMMAND_GROWS | KEYS_TWO)                                                                     \
    X(rpoplpush, "rpoplpush", 3, COMMAND_GROWS | KEYS_TWO)                                                             \
    X(blpop, "blpop", -3, COMMAND_WRITES | COMMAND_BLOCKS | KEYS_BUT_LAST)                                             \
    X(brpop, "brpop", -3, COMMAND_WRITES | COMMAND_BLOCKS | KEYS_BUT_LAST)                                             \
    X(blmove, "blmove", 6, COMMAND_GROWS | COMMAND_BLOCKS | KEYS_TWO)                                                  \
    X(brpoplpush, "brpoplpush", 4, COMMAND_GROWS | COMMAND_BLOCKS | KEYS_TWO)                                          \
    X(subscribe, "subscribe", -2, COMMAND_SUBSCRIBED)                                                                  \
    X(unsubscribe, "unsubscribe", -1, COMMAND_SUBSCRIBED)                                                              \
    X(psubscribe, "psubscribe", -2, COMMAND_SUBSCRIBED)                                                                \
    X(punsubscribe, "punsubscribe", -1, COMMAND_SUBSCRIBED)                                                            \
    X(publish, "publish", 3, 0)                                                                                        \
    X(pubsub, "pubsub", -2, 0)                                                                                         \
    X(multi, "multi", 1, COMMAND_NOW)                                                                                  \
    X(exec, "exec", 1, COMMAND_NOW)                                                                                    \
    X(discard, "discard", 1, COMMAND_NOW)                                                                              \
    X(watch, "watch", -2, COMMAND_NOW | KEYS_ALL)                                                                      \
    X(unwatch, "unwatch", 1, 0)                                                                                        \
    X(store_wait, "store.wait", -3, COMMAND_BLOCKS | KEYS_BUT_LAST)                                                    \
    X(store_cas, "store.cas", 5, COMMAND_GROWS | KEYS_ONE)                                                             \
    X(store_ping, "store.ping", 1, 0)                                                                                  \
    X(ping, "ping", -1, COMMAND_SUBSCRIBED)                                                                            \
    X(echo, "echo", 2, 0)                                                                                              \
    X(select, "select", 2, 0)                                                                                          \
    X(quit, "quit", -1, COMMAND_OPEN | COMMAND_NOW | COMMAND_SUBSCRIBED)                                               \
    X(reset, "reset", 1, COMMAND_OPEN | COMMAND_NOW | COMMAND_SUBSCRIBED)                                              \
    X(hello, "hello", -1, COMMAND_OPEN)                                                                                \
    X(client, "client", -2, 0)                                                                                         \
    X(command, "command", -1, 0)                                                                                       \
    X(config, "config", -2, 0)                                                                                         \
    X(info, "info", -1, 0)                                                                                             \
    X(time, "time", 1, 0)                                                                                              \
    X(wait, "wait", 3, 0)                                                                                              \
    X(auth, "auth", -2, COMMAND_OPEN | COMMAND_NO_MULTI)                                                               \
    X(store_auth, "store.auth", 3, COMMAND_OPEN | COMMAND_NO_MULTI)                                                    \
    X(store_use, "store.use", -1, COMMAND_FULL | COMMAND_NO_MULTI)                                                     \
    X(store_prove, "store.prove", 2, COMMAND_OPEN | COMMAND_NO_MULTI)                                                  \
    X(rdzv_join, "rdzv.join", -4, COMMAND_NO_MULTI | COMMAND_FULL)                                                     \
    X(rdzv_next, "rdzv.next", 5, COMMAND_NO_MULTI | COMMAND_FULL)                                                      \
    X(rdzv_fail, "rdzv.fail", -4, COMMAND_NO_MULTI | COMMAND_FULL)                                                     \
    X(rdzv_done, "rdzv.done", 4, COMMAND_NO_MULTI | COMMAND_FULL)                                                      \
    X(rdzv_leave, "rdzv.leave", -3, COMMAND_NO_MULTI | COMMAND_FULL)                                                   \
    X(rdzv_drain, "rdzv.drain", 2, COMMAND_NO_MULTI | COMMAND_FULL)                                                    \
    X(rdzv_status, "rdzv.status", -1, COMMAND_NO_MULTI | COMMAND_FULL)                                                 \
    X(rdzv_report, "rdzv.report", -4, COMMAND_NO_MULTI | COMMAND_FULL)                                                 \
    X(rdzv_alive, "rdzv.alive", 4, COMMAND_NO_MULTI)                                                                   \
    X(rdzv_failure, "rdzv.failure", 5, COMMAND_NO_MULTI)

struct command {
    void (*run)(struct conn *c, const struct request *rq);
    const char *name;
    int arity, flags;
};

/* The i-th of the list above; NULL: there are no more. */
const struct command *command_at(int i);

#define X(handler, name, arity, flags) void command_##handler(struct conn *c, const struct request *rq);
COMMANDS(X)
#undef X

#endif
