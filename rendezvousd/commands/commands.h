/* The room rendezvousd/commands: executes RESP requests. front_resp.c looks a request up in the table below; its
 * handler reads the arguments, works on the connection's key-space (rendezvousd/store) or, for RDZV.*, on the jobs
 * (rendezvousd/jobs), and writes a reply, at once or when what it waits for has come. There is a file for each family
 * of commands.
 *
 * The commands: one list for look-up, arity and memory; handlers in command_*.c. It contains what a job's processes
 * need, and what redis-cli and Redis' client libraries need to work. A handler takes milliseconds at most, for any
 * arguments: longer work is bounded, or continued in later turns (many.h). */
#ifndef CRUN_RENDEZVOUSD_COMMANDS_H
#define CRUN_RENDEZVOUSD_COMMANDS_H

#include <stddef.h>

struct conn;
struct request;

enum {
    COMMAND_GROWS = 1, /* refused when memory is used up; writes */
    COMMAND_OPEN = 2,  /* for clients that have not authenticated, too */
    COMMAND_WRITES = 4,
    COMMAND_BLOCKS = 8,
    COMMAND_FULL = 16,    /* not for clients that may only use keys */
    COMMAND_ANY_KEY = 32, /* reads or changes keys that it does not name */
    COMMAND_ASIDE = 64,   /* also of a daemon that stands by */
};

/* Which arguments are keys. */
#define COMMAND_KEYS_MASK (7 << 8)
enum {
    KEYS_ONE = 1 << 8,
    KEYS_ALL = 2 << 8,
    KEYS_PAIRS = 3 << 8,    /* key value [key value ...] */
    KEYS_BUT_LAST = 4 << 8, /* the last argument is a time */
};

/* handler, name, arity as in Redis (the name included; -n: at least n), flags. Searched in this order, so frequent
 * commands come first. */
#define COMMANDS(X)                                                                                                    \
    X(get, "get", 2, KEYS_ONE)                                                                                         \
    X(set, "set", -3, COMMAND_GROWS | KEYS_ONE)                                                                        \
    X(incr, "incr", 2, COMMAND_GROWS | KEYS_ONE)                                                                       \
    X(incrby, "incrby", 3, COMMAND_GROWS | KEYS_ONE)                                                                   \
    X(rdzv_next, "rdzv.next", -5, COMMAND_FULL)                                                                        \
    X(store_wait, "store.wait", -3, COMMAND_BLOCKS | KEYS_BUT_LAST)                                                    \
    X(ping, "ping", -1, 0)                                                                                             \
    X(del, "del", -2, COMMAND_WRITES | KEYS_ALL)                                                                       \
    X(setnx, "setnx", 3, COMMAND_GROWS | KEYS_ONE)                                                                     \
    X(getdel, "getdel", 2, COMMAND_WRITES | KEYS_ONE)                                                                  \
    X(decr, "decr", 2, COMMAND_GROWS | KEYS_ONE)                                                                       \
    X(decrby, "decrby", 3, COMMAND_GROWS | KEYS_ONE)                                                                   \
    X(append, "append", 3, COMMAND_GROWS | KEYS_ONE)                                                                   \
    X(strlen, "strlen", 2, KEYS_ONE)                                                                                   \
    X(mget, "mget", -2, KEYS_ALL)                                                                                      \
    X(mset, "mset", -3, COMMAND_GROWS | KEYS_PAIRS)                                                                    \
    X(exists, "exists", -2, KEYS_ALL)                                                                                  \
    X(type, "type", 2, KEYS_ONE)                                                                                       \
    X(expire, "expire", 3, COMMAND_WRITES | KEYS_ONE)                                                                  \
    X(ttl, "ttl", 2, KEYS_ONE)                                                                                         \
    X(persist, "persist", 2, COMMAND_WRITES | KEYS_ONE)                                                                \
    X(scan, "scan", -2, COMMAND_ANY_KEY)                                                                               \
    X(dbsize, "dbsize", 1, COMMAND_ANY_KEY)                                                                            \
    X(flushdb, "flushdb", -1, COMMAND_WRITES | COMMAND_ANY_KEY)                                                        \
    X(store_cas, "store.cas", 5, COMMAND_GROWS | KEYS_ONE)                                                             \
    X(store_ping, "store.ping", 1, 0)                                                                                  \
    X(store_use, "store.use", -1, COMMAND_FULL)                                                                        \
    X(store_auth, "store.auth", 3, COMMAND_OPEN)                                                                       \
    X(store_prove, "store.prove", 2, COMMAND_OPEN)                                                                     \
    X(echo, "echo", 2, 0)                                                                                              \
    X(select, "select", 2, 0)                                                                                          \
    X(quit, "quit", -1, COMMAND_OPEN)                                                                                  \
    X(hello, "hello", -1, COMMAND_OPEN)                                                                                \
    X(auth, "auth", -2, COMMAND_OPEN)                                                                                  \
    X(client, "client", -2, 0)                                                                                         \
    X(command, "command", -1, 0)                                                                                       \
    X(info, "info", -1, 0)                                                                                             \
    X(rdzv_term, "rdzv.term", 6, COMMAND_FULL)                                                                         \
    X(rdzv_seats, "rdzv.seats", 3, COMMAND_FULL | COMMAND_ASIDE)                                                       \
    X(rdzv_join, "rdzv.join", -4, COMMAND_FULL)                                                                        \
    X(rdzv_fail, "rdzv.fail", -4, COMMAND_FULL)                                                                        \
    X(rdzv_done, "rdzv.done", 4, COMMAND_FULL)                                                                         \
    X(rdzv_leave, "rdzv.leave", -3, COMMAND_FULL)                                                                      \
    X(rdzv_drain, "rdzv.drain", 2, COMMAND_FULL)                                                                       \
    X(rdzv_stop, "rdzv.stop", 2, COMMAND_FULL)                                                                         \
    X(rdzv_ask, "rdzv.ask", -4, COMMAND_FULL)                                                                          \
    X(rdzv_answer, "rdzv.answer", 5, COMMAND_FULL)                                                                     \
    X(rdzv_status, "rdzv.status", -1, COMMAND_FULL)                                                                    \
    X(rdzv_report, "rdzv.report", -4, COMMAND_FULL)                                                                    \
    X(rdzv_postmortem, "rdzv.postmortem", 4, COMMAND_FULL)                                                             \
    X(rdzv_admin, "rdzv.admin", -2, COMMAND_FULL)                                                                      \
    X(rdzv_alive, "rdzv.alive", 4, 0)                                                                                  \
    X(rdzv_failure, "rdzv.failure", 5, 0)                                                                              \
    X(rdzv_steps, "rdzv.steps", 5, 0)                                                                                  \
    X(rdzv_quiet, "rdzv.quiet", 5, 0)

struct command {
    void (*run)(struct conn *c, const struct request *rq);
    const char *name;
    size_t name_len;
    int arity, flags;
};

/* Element i of the list above; NULL: there are no more. */
const struct command *command_at(int i);

#define X(handler, name, arity, flags) void command_##handler(struct conn *c, const struct request *rq);
COMMANDS(X)
#undef X

#endif
