/* Shared by the handlers of commands: Redis' error texts, and parsers of arguments that reply with the error
 * themselves. */
#ifndef CRUN_RENDEZVOUSD_COMMAND_IMPL_H
#define CRUN_RENDEZVOUSD_COMMAND_IMPL_H

#include "rendezvousd/commands/commands.h"
#include "rendezvousd/net/server_impl.h"

#define SYNTAX_ERROR "ERR syntax error"
#define NOT_AN_INTEGER "ERR value is not an integer or out of range"
#define WRONG_TYPE "WRONGTYPE Operation against a key holding the wrong kind of value"
#define NO_MEMORY "OOM command not allowed when used memory > 'maxmemory'."

/* Reply with the error for a key-space's return value. */
void say_failure(struct conn *c, int rc);

/* Each of these returns false after it has replied with an error. */
bool want_i64(struct conn *c, const struct request_arg *a, int64_t *ret);
bool want_string_or_none(struct conn *c, const struct request_arg *key); /* else WRONGTYPE */

void say_standby(struct conn *c);                                /* this daemon does not lead */
void reply_value(struct conn *c, const struct request_arg *key); /* the string, or nil */

/* Commands in two words. */
struct subcommand {
    const char *name;
    int arity; /* with both words; -n: at least n */
    void (*run)(struct conn *c, const struct request *rq);
};
void run_subcommand(struct conn *c, const struct request *rq, const char *command, const struct subcommand *v,
                    size_t n);
#define RUN_SUBCOMMAND(c, rq, command, table) run_subcommand(c, rq, command, table, sizeof(table) / sizeof *(table))

#endif
