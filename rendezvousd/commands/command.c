/* Looks a request up in the table of commands, makes the checks common to all, and runs it. Error texts are Redis'. */
#include "rendezvousd/commands/command_impl.h"
#include <string.h>

static const struct command commands[] = {
#define X(handler, name, arity, flags) {command_##handler, name, sizeof(name) - 1, arity, flags},
    COMMANDS(X)
#undef X
};

enum { COUNT = sizeof commands / sizeof *commands };

const struct command *command_at(int i)
{
    return i < COUNT ? &commands[i] : NULL;
}

static const struct command *look_up(const struct request_arg *name)
{
    for (const struct command *cmd = commands; cmd < commands + COUNT; cmd++)
        if (cmd->name_len == name->n && request_arg_is(name, cmd->name))
            return cmd;
    return NULL;
}

/* Reply "unknown command 'x', with args beginning with: 'a' 'b' ", cut as Redis cuts it. */
static void unknown(struct conn *c, const struct request *rq)
{
    char args[160];
    size_t n = 0;
    args[0] = 0;
    for (size_t i = 1; i < rq->argc && n < 128; i++) {
        size_t room = 128 - n, len = strnlen(rq->argv[i].p, rq->argv[i].n < room ? rq->argv[i].n : room);
        args[n++] = '\'';
        memcpy(args + n, rq->argv[i].p, len);
        n += len;
        memcpy(args + n, "' ", 3);
        n += 2;
    }
    int name_len = rq->argv[0].n < 128 ? (int)rq->argv[0].n : 128;
    reply_error(&c->reply, "ERR unknown command '%.*s', with args beginning with: %s", name_len, rq->argv[0].p, args);
}

static size_t request_size(const struct request *rq)
{
    size_t n = 0;
    for (size_t i = 0; i < rq->argc; i++)
        n += rq->argv[i].n;
    return n;
}

static bool has_room(const struct conn *c, const struct command *cmd, const struct request *rq)
{
    return !(cmd->flags & COMMAND_GROWS) || keyspace_fits(c->space->keys, request_size(rq));
}

static bool has_arity(const struct command *cmd, const struct request *rq)
{
    return cmd->arity < 0 ? rq->argc >= (size_t)-cmd->arity : rq->argc == (size_t)cmd->arity;
}

/* A daemon that stands by has no jobs, and its keys would be found by nobody. */
static bool stands_by(const struct conn *c, const struct command *cmd)
{
    const int of_the_leader = COMMAND_KEYS_MASK | COMMAND_ANY_KEY | COMMAND_FULL;
    return c->s->standby && (cmd->flags & of_the_leader) && !(cmd->flags & COMMAND_ASIDE) && !server_leads(c->s);
}

/* Must the request be refused? Then the error has been sent; false: run it. */
static bool refused(struct conn *c, const struct command *cmd, const struct request *rq)
{
    if (!has_arity(cmd, rq)) {
        reply_error(&c->reply, "ERR wrong number of arguments for '%s' command", cmd->name);
    } else if (c->trust == TRUST_NONE && !(cmd->flags & COMMAND_OPEN)) {
        gate_refused(c, "asked for '%s' before it has authenticated", cmd->name);
        reply_error(&c->reply, "NOAUTH Authentication required.");
    } else if (c->trust < TRUST_FULL && (cmd->flags & COMMAND_FULL)) {
        gate_refused(c, "asked for '%s', but may use keys only", cmd->name);
        reply_error(&c->reply, "NOPERM this connection has not authenticated: it may use keys, but not '%s'",
                    cmd->name);
    } else if (stands_by(c, cmd)) {
        say_standby(c);
    } else {
        return false;
    }
    return true;
}

static void run(struct conn *c, const struct command *cmd, const struct request *rq)
{
    if (!has_room(c, cmd, rq)) {
        reply_error(&c->reply, NO_MEMORY);
        return;
    }
    c->last_command = cmd->name;
    c->space->changes += (cmd->flags & (COMMAND_GROWS | COMMAND_WRITES)) != 0;
    cmd->run(c, rq);
}

bool command_execute(struct conn *c, const struct request *rq)
{
    const struct command *cmd = look_up(&rq->argv[0]);
    if (!cmd) {
        unknown(c, rq);
    } else if (!refused(c, cmd, rq)) {
        if ((cmd->flags & (COMMAND_KEYS_MASK | COMMAND_ANY_KEY)) && many_waits(c))
            return false;
        run(c, cmd, rq);
    }
    return true;
}
