/* Commands about the connection itself, and about the other clients of its key-space. */
#include "common/base/buf.h"
#include "rendezvousd/commands/command_impl.h"
#include "rendezvousd/net/gate.h"
#include <string.h>
#include <utlist.h>

#define LISTED_MAX 1000 /* clients in one CLIENT LIST */

void command_ping(struct conn *c, const struct request *rq)
{
    if (rq->argc > 2)
        reply_error(&c->reply, "ERR wrong number of arguments for 'ping' command");
    else if (rq->argc == 2)
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

/* Set the client's name. False: the error is in the reply. */
static bool set_name(struct conn *c, const struct request_arg *name)
{
    for (size_t i = 0; i < name->n; i++) {
        if (name->p[i] < '!' || name->p[i] > '~') {
            reply_error(&c->reply, "ERR Client names cannot contain spaces, newlines or special characters.");
            return false;
        }
    }
    if (name->n > CLIENT_NAME_MAX) {
        reply_error(&c->reply, "ERR Client names cannot be longer than %d bytes", CLIENT_NAME_MAX);
        return false;
    }
    memcpy(c->name, name->p, name->n);
    c->name[name->n] = 0;
    return true;
}

/* --- HELLO */

static bool hello_options(struct conn *c, const struct request *rq)
{
    for (size_t i = 2; i < rq->argc; i++) {
        const struct request_arg *a = &rq->argv[i];
        if (request_arg_is(a, "setname") && i + 1 < rq->argc) {
            if (!set_name(c, &rq->argv[++i]))
                return false;
        } else if (request_arg_is(a, "auth") && i + 2 < rq->argc) {
            if (!gate_password(c, &rq->argv[i + 1], &rq->argv[i + 2]))
                return false;
            i += 2;
        } else {
            reply_error(&c->reply, "ERR Syntax error in HELLO option '%.*s'", a->n < 64 ? (int)a->n : 64, a->p);
            return false;
        }
    }
    return true;
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
    if (!hello_options(c, rq))
        return;
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

/* --- CLIENT */

static void client_setname(struct conn *c, const struct request *rq)
{
    if (set_name(c, &rq->argv[2]))
        reply_status(&c->reply, "OK");
}

static void client_getname(struct conn *c, const struct request *rq)
{
    (void)rq;
    if (c->name[0])
        reply_text(&c->reply, c->name);
    else
        reply_nil(&c->reply);
}

static void client_id(struct conn *c, const struct request *rq)
{
    (void)rq;
    reply_int(&c->reply, (int64_t)c->id);
}

static void describe(const struct conn *c, struct buf *b)
{
    int64_t now = (int64_t)uv_now(c->s->loop);
    buf_printf(b, "id=%llu addr=%s name=%s age=%lld idle=%lld flags=%s db=0 tot-mem=%zu cmd=%s user=%s\n",
               (unsigned long long)c->id, gate_peer_text(c), c->name, (long long)(now - c->since_ms) / 1000,
               (long long)(now - c->active_ms) / 1000, c->blocked ? "b" : "N", c->charged,
               c->last_command ? c->last_command : "NULL", c->principal ? c->principal : "default");
}

/* May a client see another connection? If both use the same keys; but a worker that was admitted by its address may
 * not see connections of agents. */
static bool may_see(const struct conn *c, const struct conn *one)
{
    return one->space == c->space && one->trust <= c->trust;
}

static void client_list(struct conn *c, const struct request *rq)
{
    struct buf b = {.max = c->s->o.max_output_bytes};
    struct conn *one;
    size_t left = LISTED_MAX;
    (void)rq;
    DL_FOREACH (c->s->conns, one) {
        if (left == 0)
            break;
        if (!may_see(c, one))
            continue;
        describe(one, &b);
        left--;
    }
    reply_bulk(&c->reply, b.data ? b.data : "", b.len);
    buf_free(&b);
}

void command_client(struct conn *c, const struct request *rq)
{
    static const struct subcommand v[] = {
        {"id", 2, client_id}, {"setname", 3, client_setname}, {"getname", 2, client_getname}, {"list", 2, client_list}};
    RUN_SUBCOMMAND(c, rq, "client", v);
}
