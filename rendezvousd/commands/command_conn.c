/* Commands about the connection itself. */
#include "rendezvousd/commands/command_impl.h"
#include "rendezvousd/net/gate.h"
#include <string.h>

void command_ping(struct conn *c, const struct request *rq)
{
    if (rq->argc > 2)
        reply_error(&c->reply, "ERR wrong number of arguments for 'ping' command");
    else if (c->subscriber) {
        reply_array(&c->reply, 2);
        reply_text(&c->reply, "pong");
        reply_bulk(&c->reply, rq->argc == 2 ? rq->argv[1].p : "", rq->argc == 2 ? rq->argv[1].n : 0);
    } else if (rq->argc == 2)
        reply_bulk(&c->reply, rq->argv[1].p, rq->argv[1].n);
    else
        reply_status(&c->reply, "PONG");
}

void command_echo(struct conn *c, const struct request *rq)
{
    reply_bulk(&c->reply, rq->argv[1].p, rq->argv[1].n);
}

void command_select(struct conn *c, const struct request *rq)
{
    int64_t db;
    if (!want_i64(c, &rq->argv[1], &db))
        return;
    if (db != 0)
        reply_error(&c->reply, "ERR DB index is out of range");
    else
        reply_status(&c->reply, "OK");
}

void command_quit(struct conn *c, const struct request *rq)
{
    (void)rq;
    reply_status(&c->reply, "OK");
    c->last_words = true;
}

/* As if it had just connected, but for what it has proved of itself. */
void command_reset(struct conn *c, const struct request *rq)
{
    (void)rq;
    command_forget(c);
    c->name[0] = 0;
    c->replies = REPLY_ON;
    reply_status(&c->reply, "RESET");
}

void command_hello(struct conn *c, const struct request *rq)
{
    int64_t version = 2;
    if (rq->argc > 1 && !request_i64(rq->argv[1].p, rq->argv[1].n, &version)) {
        reply_error(&c->reply, "ERR Protocol version is not an integer or out of range");
        return;
    }
    if (version != 2) {
        reply_error(&c->reply, "NOPROTO unsupported protocol version");
        return;
    }
    for (size_t i = 2; i < rq->argc; i++) {
        const struct request_arg *a = &rq->argv[i];
        if (request_arg_is(a, "setname") && i + 1 < rq->argc) {
            if (!want_client_name(c, &rq->argv[++i]))
                return;
        } else if (request_arg_is(a, "auth") && i + 2 < rq->argc) {
            if (!gate_password(c, &rq->argv[i + 1], &rq->argv[i + 2]))
                return;
            i += 2;
        } else {
            reply_error(&c->reply, "ERR Syntax error in HELLO option '%.*s'", a->n < 64 ? (int)a->n : 64, a->p);
            return;
        }
    }
    reply_array(&c->reply, 14);
    reply_text(&c->reply, "server");
    reply_text(&c->reply, "rendezvousd");
    reply_text(&c->reply, "version");
    reply_text(&c->reply, CRUN_VERSION);
    reply_text(&c->reply, "proto");
    reply_int(&c->reply, 2);
    reply_text(&c->reply, "id");
    reply_int(&c->reply, (int64_t)c->id);
    reply_text(&c->reply, "mode");
    reply_text(&c->reply, "standalone");
    reply_text(&c->reply, "role");
    reply_text(&c->reply, "master");
    reply_text(&c->reply, "modules");
    reply_array(&c->reply, 0);
}
