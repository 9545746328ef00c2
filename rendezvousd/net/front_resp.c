/* RESP2 as a front end: the bounded parser of request.h in front of the commands. */
#include "common/base/err.h"
#include "common/base/log.h"
#include "rendezvousd/net/server_impl.h"
#include <errno.h>
#include <stdlib.h>

#define MODULE "server"

struct resp_state {
    struct request_parser in;
    struct request next; /* complete, not executed yet */
    bool has_next;
    bool limited; /* the parser has the limits for strangers */
    int broken;   /* the parser's error, which the next step reports */
    struct err e;
};

/* A stranger needs no long requests. */
static struct request_limits limits(const struct conn *c)
{
    if (c->trust == TRUST_NONE)
        return (struct request_limits){GATE_REQUEST_MAX, GATE_ARGS_MAX};
    return (struct request_limits){c->s->o.max_request_bytes, c->s->o.max_args};
}

static int resp_open(struct conn *c)
{
    struct resp_state *r = calloc(1, sizeof *r);
    if (!r)
        return -ENOMEM;
    struct request_limits l = limits(c);
    request_parser_init(&r->in, &l);
    r->limited = c->trust == TRUST_NONE;
    c->front_state = r;
    return 0;
}

static void resp_close(struct conn *c)
{
    struct resp_state *r = c->front_state;
    request_parser_free(&r->in);
    free(r);
}

static int resp_feed(struct conn *c, const void *data, size_t n)
{
    struct resp_state *r = c->front_state;
    return request_feed(&r->in, data,
                        n); /* `next` points into the parser's buffer: conn.c feeds it only if there is no `next` */
}

/* As request_next(), with the limits that apply to this client now. */
static inline int next(const struct conn *c, struct resp_state *r)
{
    if (r->limited != (c->trust == TRUST_NONE)) {
        struct request_limits l = limits(c);
        r->limited = !r->limited;
        request_parser_limit(&r->in, &l);
    }
    int rc = request_next(&r->in, &r->next, &r->e);
    if (rc < 0)
        r->broken = rc;
    return rc;
}

static bool resp_ready(struct conn *c)
{
    struct resp_state *r = c->front_state;
    if (!r->has_next && r->broken == 0)
        r->has_next = next(c, r) > 0;
    return r->has_next || r->broken < 0;
}

static int refuse_request(struct conn *c, int code, const struct err *e)
{
    log_info(MODULE, "client %llu closed: %s", (unsigned long long)c->id, e->text);
    if (c->trust == TRUST_NONE)
        gate_refused(c, "before it has authenticated: %s", e->text);
    reply_error(&c->reply, code == -EPROTO ? "ERR %s" : "OOM %s", e->text);
    return code;
}

/* For conn.work: try the request again that waited for another client's use of the keys. */
static bool again(struct conn *c)
{
    struct resp_state *r = c->front_state;
    return command_execute(c, &r->next) && c->work == again;
}

static int resp_step(struct conn *c)
{
    struct resp_state *r = c->front_state;
    if (!r->has_next && r->broken == 0 && next(c, r) == 0)
        return 0;
    if (r->broken < 0)
        return refuse_request(c, r->broken, &r->e);
    r->has_next = false;
    if (!command_execute(c, &r->next))
        c->work = again;
    return 1;
}

static bool resp_unfinished(struct conn *c)
{
    return request_begun(&((struct resp_state *)c->front_state)->in);
}

static size_t resp_buffered(struct conn *c)
{
    return request_buffered(&((struct resp_state *)c->front_state)->in);
}

static size_t resp_memory(struct conn *c)
{
    return request_memory(&((struct resp_state *)c->front_state)->in);
}

const struct front front_resp = {
    .name = "resp",
    .open = resp_open,
    .close = resp_close,
    .feed = resp_feed,
    .step = resp_step,
    .ready = resp_ready,
    .unfinished = resp_unfinished,
    .buffered = resp_buffered,
    .memory = resp_memory,
};
