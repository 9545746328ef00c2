/* Look a request up in the list of commands, check what can be checked for all, and run it. Error texts are Redis'. */
#include "rendezvousd/commands.h"
#include "rendezvousd/server_impl.h"
#include <stdlib.h>
#include <string.h>
#include <strings.h>

struct command {
    void (*run)(struct conn *c, const struct request *rq);
    const char *name;
    size_t name_len;
    int arity, flags;
};

static const struct command commands[] = {
#define X(handler, name, arity, flags) {command_##handler, name, sizeof(name) - 1, arity, flags},
    COMMANDS(X)
#undef X
};

static const struct command *look_up(const struct request_arg *name)
{
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        if (commands[i].name_len == name->n && strncasecmp(commands[i].name, name->p, name->n) == 0)
            return &commands[i];
    return NULL;
}

/* "unknown command 'x', with args beginning with: 'a' 'b' ", cut where Redis cuts it. */
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

void command_execute(struct conn *c, const struct request *rq)
{
    const struct command *cmd = look_up(&rq->argv[0]);
    if (!cmd) {
        unknown(c, rq);
        return;
    }
    size_t least = (size_t)abs(cmd->arity);
    if (rq->argc < least || (cmd->arity > 0 && rq->argc > least)) {
        reply_error(&c->reply, "ERR wrong number of arguments for '%s' command", cmd->name);
        return;
    }
    if (c->trust == TRUST_NONE && !(cmd->flags & COMMAND_OPEN)) {
        gate_refused(c, "asked for '%s' before it has authenticated", cmd->name);
        reply_error(&c->reply, "NOAUTH Authentication required.");
        return;
    }
    if ((cmd->flags & COMMAND_GROWS) && !keyspace_fits(c->space->keys, request_size(rq))) {
        reply_error(&c->reply, "OOM command not allowed when used memory > 'maxmemory'.");
        return;
    }
    cmd->run(c, rq);
}
