/* Commands about the connection and the server. */
#include "common/clock.h"
#include "rendezvousd/commands.h"
#include "rendezvousd/server_impl.h"
#include <stdio.h>
#include <string.h>
#include <unistd.h>

void command_ping(struct conn *c, const struct request *rq)
{
    if (rq->argc > 2)
        reply_error(&c->reply, "ERR wrong number of arguments for 'ping' command");
    else if (rq->argc == 2)
        reply_bulk(&c->reply, rq->argv[1].p, rq->argv[1].n);
    else
        reply_status(&c->reply, "PONG");
}

void command_store_ping(struct conn *c, const struct request *rq)
{
    (void)rq;
    reply_status(&c->reply, "STORE");
}

void command_echo(struct conn *c, const struct request *rq)
{
    reply_bulk(&c->reply, rq->argv[1].p, rq->argv[1].n);
}

void command_select(struct conn *c, const struct request *rq)
{
    int64_t db;
    if (!request_i64(rq->argv[1].p, rq->argv[1].n, &db))
        reply_error(&c->reply, "ERR value is not an integer or out of range");
    else if (db != 0)
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
    if (rq->argc > 2) {
        reply_error(&c->reply, "ERR Syntax error in HELLO option '%.*s'", rq->argv[2].n < 64 ? (int)rq->argv[2].n : 64,
                    rq->argv[2].p);
        return;
    }
    reply_array(&c->reply, 10);
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
}

static void set_name(struct conn *c, const struct request_arg *name)
{
    for (size_t i = 0; i < name->n; i++) {
        if (name->p[i] < '!' || name->p[i] > '~') {
            reply_error(&c->reply, "ERR Client names cannot contain spaces, newlines or special characters.");
            return;
        }
    }
    if (name->n > CLIENT_NAME_MAX) {
        reply_error(&c->reply, "ERR Client names cannot be longer than %d bytes", CLIENT_NAME_MAX);
        return;
    }
    memcpy(c->name, name->p, name->n);
    c->name[name->n] = 0;
    reply_status(&c->reply, "OK");
}

void command_client(struct conn *c, const struct request *rq)
{
    const struct request_arg *sub = &rq->argv[1];
    if (request_arg_is(sub, "setname") && rq->argc == 3)
        set_name(c, &rq->argv[2]);
    else if (request_arg_is(sub, "getname") && rq->argc == 2 && c->name[0])
        reply_text(&c->reply, c->name);
    else if (request_arg_is(sub, "getname") && rq->argc == 2)
        reply_nil(&c->reply);
    else if (request_arg_is(sub, "id") && rq->argc == 2)
        reply_int(&c->reply, (int64_t)c->id);
    else
        reply_error(&c->reply, "ERR unknown subcommand '%.*s'. Try CLIENT HELP.", sub->n < 128 ? (int)sub->n : 128,
                    sub->p);
}

/* Clients that ask for the list of commands get none, and go on. */
void command_command(struct conn *c, const struct request *rq)
{
    (void)rq;
    reply_array(&c->reply, 0);
}

void command_info(struct conn *c, const struct request *rq)
{
    struct server_stats st;
    char text[1024];
    (void)rq;
    server_stats(c->s, &st);
    int n =
        snprintf(text, sizeof text,
                 "# Server\r\nrendezvousd_version:" CRUN_VERSION "\r\nprocess_id:%ld\r\nuptime_in_seconds:%lld\r\n\r\n"
                 "# Clients\r\nconnected_clients:%zu\r\nmaxclients:%zu\r\nblocked_clients:%zu\r\n\r\n"
                 "# Memory\r\nused_memory:%zu\r\nmaxmemory:%zu\r\n\r\n"
                 "# Stats\r\ntotal_connections_received:%llu\r\ntotal_commands_processed:%llu\r\n"
                 "rejected_connections:%llu\r\n\r\n"
                 "# Keyspace\r\nkeys:%zu\r\n",
                 (long)getpid(), (long long)((clock_ms() - c->s->started_ms) / 1000), st.clients, c->s->o.max_clients,
                 st.waiters, st.memory_bytes, c->s->o.max_memory_bytes, (unsigned long long)st.connections,
                 (unsigned long long)st.commands, (unsigned long long)st.refused, st.keys);
    reply_bulk(&c->reply, text, (size_t)n);
}
