/* Error texts and argument parsers that several commands use (command_impl.h). */
#include "rendezvousd/commands/command_impl.h"
#include <ctype.h>
#include <errno.h>
#include <stdio.h>

void say_failure(struct conn *c, int rc)
{
    if (rc == -EINVAL)
        reply_error(&c->reply, NOT_AN_INTEGER);
    else if (rc == -ERANGE)
        reply_error(&c->reply, "ERR increment or decrement would overflow");
    else if (rc == -EPROTOTYPE)
        reply_error(&c->reply, WRONG_TYPE);
    else
        reply_error(&c->reply, NO_MEMORY);
}

bool want_i64(struct conn *c, const struct request_arg *a, int64_t *ret)
{
    if (request_i64(a->p, a->n, ret))
        return true;
    reply_error(&c->reply, NOT_AN_INTEGER);
    return false;
}

bool want_string_or_none(struct conn *c, const struct request_arg *key)
{
    if (keyspace_type(c->space->keys, key->p, key->n) != KEY_QUEUE)
        return true;
    reply_error(&c->reply, WRONG_TYPE);
    return false;
}

void reply_value(struct conn *c, const struct request_arg *key)
{
    size_t n;
    const char *v = keyspace_get(c->space->keys, key->p, key->n, &n);
    if (v)
        reply_bulk(&c->reply, v, n);
    else
        reply_nil(&c->reply);
}

static void upper(const char *word, char *ret, size_t cap)
{
    size_t i = 0;
    for (; word[i] && i < cap - 1; i++)
        ret[i] = (char)toupper((unsigned char)word[i]);
    ret[i] = 0;
}

static void reply_help(struct conn *c, const char *command, const struct subcommand *v, size_t n)
{
    char line[96], name[24];
    upper(command, name, sizeof name);
    snprintf(line, sizeof line, "%s <subcommand> [<argument> ...]. Subcommands are:", name);
    reply_array(&c->reply, n + 2);
    reply_status(&c->reply, line);
    for (size_t i = 0; i < n; i++) {
        upper(v[i].name, name, sizeof name);
        reply_status(&c->reply, name);
    }
    reply_status(&c->reply, "HELP");
}

void run_subcommand(struct conn *c, const struct request *rq, const char *command, const struct subcommand *v, size_t n)
{
    const struct request_arg *sub = &rq->argv[1];
    for (size_t i = 0; i < n; i++) {
        int arity = v[i].arity;
        if (!request_arg_is(sub, v[i].name))
            continue;
        if (arity > 0 ? rq->argc != (size_t)arity : rq->argc < (size_t)-arity)
            reply_error(&c->reply, "ERR wrong number of arguments for '%s|%s' command", command, v[i].name);
        else
            v[i].run(c, rq);
        return;
    }
    char name[24];
    upper(command, name, sizeof name);
    if (request_arg_is(sub, "help") && rq->argc == 2)
        reply_help(c, command, v, n);
    else
        reply_error(&c->reply, "ERR unknown subcommand '%.*s'. Try %s HELP.", sub->n < 128 ? (int)sub->n : 128, sub->p,
                    name);
}

void say_standby(struct conn *c)
{
    const char *leader = c->s->standby->leader;
    reply_error(&c->reply, "STANDBY this rendezvousd stands by: %s%s", leader[0] ? leader : "no other one",
                leader[0] ? " leads" : " leads either, as far as it knows; ask again");
}
