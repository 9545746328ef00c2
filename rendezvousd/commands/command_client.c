/* CLIENT: who is connected. A client sees, and may close, those that share its key-space. */
#include "common/base/buf.h"
#include "rendezvousd/commands/command_impl.h"
#include "rendezvousd/store/pubsub.h"
#include "rendezvousd/store/transaction.h"
#include <string.h>
#include <utlist.h>

#define ADDRESS_MAX 64

bool want_client_name(struct conn *c, const struct request_arg *name)
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

static void client_setname(struct conn *c, const struct request *rq)
{
    if (want_client_name(c, &rq->argv[2]))
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

/* --- LIST, INFO */

typedef int address_of(const uv_tcp_t *tcp, struct sockaddr *sa, int *n);

static void address(const struct conn *c, address_of *of, char *ret)
{
    struct sockaddr_storage sa;
    char ip[ADDRESS_MAX - 10] = "?";
    int n = sizeof sa, port = 0;
    if (of(&c->tcp, (struct sockaddr *)&sa, &n) == 0) {
        uv_ip_name((struct sockaddr *)&sa, ip, sizeof ip);
        const struct sockaddr_in *v4 = (const void *)&sa;
        const struct sockaddr_in6 *v6 = (const void *)&sa;
        port = ntohs(sa.ss_family == AF_INET6 ? v6->sin6_port : v4->sin_port);
    }
    const char *fmt = sa.ss_family == AF_INET6 ? "[%s]:%d" : "%s:%d";
    struct buf b = {0};
    if (buf_printf(&b, fmt, ip, port) == 0)
        memcpy(ret, b.data, b.len + 1);
    else
        *ret = 0;
    buf_free(&b);
}

static void describe(const struct conn *c, struct buf *b)
{
    char peer[ADDRESS_MAX], own[ADDRESS_MAX];
    int64_t now = (int64_t)uv_now(c->s->loop);
    address(c, uv_tcp_getpeername, peer);
    address(c, uv_tcp_getsockname, own);
    const char *flags = c->subscriber ? "P" : c->txn ? "x" : c->blocked ? "b" : "N";
    buf_printf(
        b,
        "id=%llu addr=%s laddr=%s fd=-1 name=%s age=%lld idle=%lld flags=%s db=0 sub=%zu psub=%zu ssub=0 multi=%d "
        "qbuf=%zu qbuf-free=0 argv-mem=0 multi-mem=%zu rbs=0 rbp=0 obl=%zu oll=0 omem=%zu tot-mem=%zu events=r "
        "cmd=%s user=%s redir=-1 resp=2\n",
        (unsigned long long)c->id, peer, own, c->name, (long long)(now - c->since_ms) / 1000,
        (long long)(now - c->active_ms) / 1000, flags, pubsub_subscriptions(c->subscriber, TOPIC_CHANNEL),
        pubsub_subscriptions(c->subscriber, TOPIC_PATTERN), c->txn ? (int)c->txn->n : -1,
        c->front ? c->front->buffered((struct conn *)c) : 0, c->txn ? c->txn->bytes : 0, c->reply.out.len,
        c->flying.len, c->charged, c->last_command ? c->last_command : "NULL", c->principal ? c->principal : "default");
}

static void client_info(struct conn *c, const struct request *rq)
{
    struct buf b = {0};
    (void)rq;
    describe(c, &b);
    reply_bulk(&c->reply, b.data, b.len);
    buf_free(&b);
}

static bool of_type(const struct conn *c, const struct request_arg *type)
{
    return request_arg_is(type, c->subscriber ? "pubsub" : "normal");
}

static bool want_type(struct conn *c, const struct request_arg *a)
{
    static const char *const types[] = {"normal", "pubsub", "master", "replica", "slave"};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (request_arg_is(a, types[i]))
            return true;
    reply_error(&c->reply, "ERR Unknown client type '%.*s'", a->n < 64 ? (int)a->n : 64, a->p);
    return false;
}

static bool among(const struct conn *one, const struct request_arg *ids, size_t n)
{
    int64_t id;
    for (size_t i = 0; i < n; i++)
        if (request_i64(ids[i].p, ids[i].n, &id) && (uint64_t)id == one->id)
            return true;
    return false;
}

/* Who uses the same keys; but a worker that was let in for its address has no business with the connections of
 * agents. */
static bool may_see(const struct conn *c, const struct conn *one)
{
    return one->space == c->space && one->trust <= c->trust;
}

static void client_list(struct conn *c, const struct request *rq)
{
    bool type = rq->argc == 4 && request_arg_is(&rq->argv[2], "type");
    bool id = rq->argc > 3 && request_arg_is(&rq->argv[2], "id");
    if (rq->argc > 2 && !type && !id) {
        reply_error(&c->reply, SYNTAX_ERROR);
        return;
    }
    if (type && !want_type(c, &rq->argv[3]))
        return;
    int64_t number;
    for (size_t i = 3; id && i < rq->argc; i++) {
        if (!request_i64(rq->argv[i].p, rq->argv[i].n, &number) || number < 1) {
            reply_error(&c->reply, "ERR Invalid client ID");
            return;
        }
    }
    struct buf b = {.max = c->s->o.max_output_bytes};
    struct conn *one;
    DL_FOREACH (c->s->conns, one) {
        if (may_see(c, one) && (!type || of_type(one, &rq->argv[3])) && (!id || among(one, &rq->argv[3], rq->argc - 3)))
            describe(one, &b);
    }
    reply_bulk(&c->reply, b.data ? b.data : "", b.len);
    buf_free(&b);
}

/* --- KILL */

struct kill_filter {
    const struct request_arg *addr, *laddr, *type, *user;
    int64_t id; /* 0: any */
    bool keep_me;
};

static bool equals(const struct request_arg *a, const char *text)
{
    return strlen(text) == a->n && memcmp(text, a->p, a->n) == 0;
}

static bool matches(const struct conn *one, const struct kill_filter *f)
{
    char text[ADDRESS_MAX];
    if (f->id && (uint64_t)f->id != one->id)
        return false;
    if (f->type && !of_type(one, f->type))
        return false;
    if (f->user && !equals(f->user, one->principal ? one->principal : "default"))
        return false;
    if (f->addr) {
        address(one, uv_tcp_getpeername, text);
        if (!equals(f->addr, text))
            return false;
    }
    if (f->laddr) {
        address(one, uv_tcp_getsockname, text);
        if (!equals(f->laddr, text))
            return false;
    }
    return true;
}

static bool kill_option(struct conn *c, const struct request_arg *a, struct kill_filter *f)
{
    if (request_arg_is(a, "id")) {
        if (request_i64(a[1].p, a[1].n, &f->id) && f->id > 0)
            return true;
        reply_error(&c->reply, "ERR client-id should be greater than 0");
        return false;
    }
    if (request_arg_is(a, "addr"))
        f->addr = a + 1;
    else if (request_arg_is(a, "laddr"))
        f->laddr = a + 1;
    else if (request_arg_is(a, "user"))
        f->user = a + 1;
    else if (request_arg_is(a, "skipme") && (request_arg_is(a + 1, "yes") || request_arg_is(a + 1, "no")))
        f->keep_me = request_arg_is(a + 1, "yes");
    else if (request_arg_is(a, "type")) {
        f->type = a + 1;
        return want_type(c, a + 1);
    } else {
        reply_error(&c->reply, SYNTAX_ERROR);
        return false;
    }
    return true;
}

static void client_kill(struct conn *c, const struct request *rq)
{
    bool by_address = rq->argc == 3; /* the old form */
    struct kill_filter f = {.keep_me = !by_address, .addr = by_address ? &rq->argv[2] : NULL};
    if (!by_address && rq->argc % 2 != 0) {
        reply_error(&c->reply, SYNTAX_ERROR);
        return;
    }
    for (size_t i = 2; !by_address && i < rq->argc; i += 2)
        if (!kill_option(c, &rq->argv[i], &f))
            return;
    int64_t killed = 0;
    struct conn *one, *next;
    DL_FOREACH_SAFE(c->s->conns, one, next)
    {
        if (!may_see(c, one) || (one == c && f.keep_me) || !matches(one, &f))
            continue;
        killed++;
        if (one == c)
            c->last_words = true; /* it hears of it first */
        else
            conn_close(one);
    }
    if (!by_address)
        reply_int(&c->reply, killed);
    else if (killed)
        reply_status(&c->reply, "OK");
    else
        reply_error(&c->reply, "ERR No such client");
}

/* --- the rest */

static void client_reply(struct conn *c, const struct request *rq)
{
    const struct request_arg *how = &rq->argv[2];
    if (request_arg_is(how, "on"))
        c->replies = REPLY_ON;
    else if (request_arg_is(how, "off"))
        c->replies = REPLY_OFF;
    else if (request_arg_is(how, "skip") && c->replies != REPLY_OFF)
        c->replies = REPLY_SKIP_NEXT;
    else if (!request_arg_is(how, "skip")) {
        reply_error(&c->reply, SYNTAX_ERROR);
        return;
    }
    reply_status(&c->reply, "OK"); /* muted unless ON */
}

/* What a library says of itself; nothing here depends on it. */
static void client_setinfo(struct conn *c, const struct request *rq)
{
    const struct request_arg *a = &rq->argv[2];
    if (request_arg_is(a, "lib-name") || request_arg_is(a, "lib-ver"))
        reply_status(&c->reply, "OK");
    else
        reply_error(&c->reply, "ERR Unrecognized option '%.*s'", a->n < 64 ? (int)a->n : 64, a->p);
}

/* Nothing is ever evicted here. */
static void client_no_evict(struct conn *c, const struct request *rq)
{
    if (request_arg_is(&rq->argv[2], "on") || request_arg_is(&rq->argv[2], "off"))
        reply_status(&c->reply, "OK");
    else
        reply_error(&c->reply, SYNTAX_ERROR);
}

void command_client(struct conn *c, const struct request *rq)
{
    static const struct subcommand v[] = {
        {"id", 2, client_id},       {"setname", 3, client_setname}, {"getname", 2, client_getname},
        {"list", -2, client_list},  {"info", 2, client_info},       {"kill", -3, client_kill},
        {"reply", 3, client_reply}, {"setinfo", 4, client_setinfo}, {"no-evict", 3, client_no_evict},
    };
    RUN_SUBCOMMAND(c, rq, "client", v);
}
