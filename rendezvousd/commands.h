/* The commands: one list for look-up, arity and what memory they may need; handlers in command_*.c. */
#ifndef CRUN_RENDEZVOUSD_COMMANDS_H
#define CRUN_RENDEZVOUSD_COMMANDS_H

struct conn;
struct request;

#define COMMAND_GROWS 1 /* refused when memory is used up */
#define COMMAND_OPEN 2  /* for clients that have not authenticated, too */

/* handler, name, arity as Redis counts it (the name included; -n: at least n), flags */
#define COMMANDS(X)                                                                                                    \
    X(get, "get", 2, 0)                                                                                                \
    X(set, "set", -3, COMMAND_GROWS)                                                                                   \
    X(incr, "incr", 2, COMMAND_GROWS)                                                                                  \
    X(incrby, "incrby", 3, COMMAND_GROWS)                                                                              \
    X(decr, "decr", 2, COMMAND_GROWS)                                                                                  \
    X(decrby, "decrby", 3, COMMAND_GROWS)                                                                              \
    X(del, "del", -2, 0)                                                                                               \
    X(exists, "exists", -2, 0)                                                                                         \
    X(append, "append", 3, COMMAND_GROWS)                                                                              \
    X(setnx, "setnx", 3, COMMAND_GROWS)                                                                                \
    X(mget, "mget", -2, 0)                                                                                             \
    X(mset, "mset", -3, COMMAND_GROWS)                                                                                 \
    X(keys, "keys", 2, 0)                                                                                              \
    X(dbsize, "dbsize", 1, 0)                                                                                          \
    X(flushall, "flushall", -1, 0)                                                                                     \
    X(store_wait, "store.wait", -3, 0)                                                                                 \
    X(store_cas, "store.cas", 5, COMMAND_GROWS)                                                                        \
    X(store_ping, "store.ping", 1, 0)                                                                                  \
    X(ping, "ping", -1, 0)                                                                                             \
    X(echo, "echo", 2, 0)                                                                                              \
    X(select, "select", 2, 0)                                                                                          \
    X(quit, "quit", -1, COMMAND_OPEN)                                                                                  \
    X(hello, "hello", -1, COMMAND_OPEN)                                                                                \
    X(client, "client", -2, 0)                                                                                         \
    X(command, "command", -1, 0)                                                                                       \
    X(info, "info", -1, 0)                                                                                             \
    X(auth, "auth", -2, COMMAND_OPEN)                                                                                  \
    X(store_auth, "store.auth", 3, COMMAND_OPEN)                                                                       \
    X(store_prove, "store.prove", 2, COMMAND_OPEN)                                                                     \
    X(rdzv_join, "rdzv.join", -4, 0)                                                                                   \
    X(rdzv_next, "rdzv.next", 5, 0)                                                                                    \
    X(rdzv_fail, "rdzv.fail", -4, 0)                                                                                   \
    X(rdzv_done, "rdzv.done", 4, 0)                                                                                    \
    X(rdzv_leave, "rdzv.leave", 3, 0)                                                                                  \
    X(rdzv_drain, "rdzv.drain", 2, 0)                                                                                  \
    X(rdzv_status, "rdzv.status", -1, 0)                                                                               \
    X(rdzv_report, "rdzv.report", -4, 0)                                                                               \
    X(rdzv_alive, "rdzv.alive", 4, 0)

#define X(handler, name, arity, flags) void command_##handler(struct conn *c, const struct request *rq);
COMMANDS(X)
#undef X

#endif
