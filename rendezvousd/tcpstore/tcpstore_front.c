/* TCPStore as a front end: the parser of tcpstore.h in front of the functions that execute requests.
 *
 * - The first bytes tell the generation. The older client opens a second connection and never sends anything on it:
 *   such a connection gets no front end and no deadline, because closing it would make that client spin.
 * - A client that waits sends nothing but CANCEL_WAIT. The clients of torch 1.13 cannot cancel: after their own timeout
 *   they send the next request, and would take a late answer to the wait for the answer to that one. So in the older
 *   generation any request ends the wait without an answer.
 * - The protocol has no errors: a request that fails closes the connection, and the log says why. */
#include "common/base/log.h"
#include "rendezvousd/net/server_impl.h"
#include "rendezvousd/tcpstore/tcpstore_internal.h"
#include <errno.h>
#include <stdlib.h>

#define MODULE "tcpstore"

static int tcpstore_open(struct conn *c)
{
    if (c->trust < TRUST_STORE) {
        log_warn(MODULE, "client %llu refused: it speaks PyTorch's TCPStore protocol, which cannot authenticate",
                 (unsigned long long)c->id);
        return -EACCES;
    }
    if (!server_leads(c->s)) {
        log_info(MODULE, "client %llu closed: this rendezvousd stands by, and %s leads", (unsigned long long)c->id,
                 c->s->standby->leader[0] ? c->s->standby->leader : "nobody");
        return -EREMOTE;
    }
    struct tcpstore_state *t = calloc(1, sizeof *t);
    if (!t)
        return -ENOMEM;
    tcpstore_parser_init(&t->in, &(struct tcpstore_limits){.max_bytes = c->s->o.max_request_bytes,
                                                           .max_key = TCPSTORE_KEY_MAX,
                                                           .max_keys = TCPSTORE_KEYS_MAX});
    c->front_state = t;
    return 0;
}

static void tcpstore_close(struct conn *c)
{
    struct tcpstore_state *t = c->front_state;
    tcpstore_parser_free(&t->in);
    tcpstore_walk_end(&t->walk);
    free(t);
}

static int tcpstore_take(struct conn *c, const void *data, size_t n)
{
    struct tcpstore_state *t = c->front_state;
    return tcpstore_feed(&t->in, data, n);
}

static bool look_ahead(struct tcpstore_state *t)
{
    if (!t->has_next && t->broken == 0) {
        int rc = tcpstore_next(&t->in, &t->next, &t->e);
        t->has_next = rc > 0;
        t->broken = rc < 0 ? rc : 0;
    }
    return t->has_next || t->broken < 0;
}

/* While c waits: is its next request here, and may it end the wait? */
static bool tcpstore_ready(struct conn *c)
{
    struct tcpstore_state *t = c->front_state;
    if (!t->has_next && c->blocked && t->in.generation == TCPSTORE_NEWER &&
        tcpstore_peek(&t->in) != TCPSTORE_CANCEL_WAIT)
        return false;
    return look_ahead(t);
}

/* A request failed. The client only sees a lost connection, so log the error here; at a lower level if a key is
 * missing, which older clients ask for regularly. */
static int refuse_operation(struct conn *c, int code, const char *op, const struct err *e)
{
    const enum log_level level = code == -ENOENT ? LOG_INFO : LOG_WARN;
    log_line(level, MODULE, "client %llu closed: %s%s%s", (unsigned long long)c->id, op, *op ? ": " : "", e->text);
    return code;
}

void tcpstore_refuse(struct conn *c, const struct err *e)
{
    const struct tcpstore_state *t = c->front_state;
    refuse_operation(c, e->code, tcpstore_op_name(t->next.op), e);
    c->last_words = true;
}

static int execute(struct conn *c)
{
    struct tcpstore_state *t = c->front_state;
    space_tick(c->space, c->s);
    return tcpstore_execute(c, &t->next, &t->e);
}

/* For conn.work: try the request again that waited for another client's use of the keys. */
static bool again(struct conn *c)
{
    struct tcpstore_state *t = c->front_state;
    const int rc = execute(c);
    if (rc < 0)
        tcpstore_refuse(c, &t->e);
    return rc != 0 && c->work == again;
}

static int tcpstore_step(struct conn *c)
{
    struct tcpstore_state *t = c->front_state;
    if (!look_ahead(t))
        return 0;
    if (t->broken < 0)
        return refuse_operation(c, t->broken, "", &t->e);
    t->has_next = false;
    const int rc = execute(c);
    if (rc == 0)
        c->work = again;
    return rc < 0 ? refuse_operation(c, rc, tcpstore_op_name(t->next.op), &t->e) : 1;
}

/* Is a request unfinished? While the client waits, requests that it has sent ahead have no deadline. */
static bool tcpstore_unfinished(struct conn *c)
{
    struct tcpstore_state *t = c->front_state;
    return !c->blocked && tcpstore_buffered(&t->in) > 0;
}

static size_t tcpstore_held(struct conn *c)
{
    return tcpstore_buffered(&((struct tcpstore_state *)c->front_state)->in);
}

static size_t tcpstore_taken(struct conn *c)
{
    const struct tcpstore_state *t = c->front_state;
    return tcpstore_memory(&t->in) + t->walk.names.out.cap;
}

const struct front front_tcpstore = {
    .name = "tcpstore",
    .open = tcpstore_open,
    .close = tcpstore_close,
    .feed = tcpstore_take,
    .step = tcpstore_step,
    .ready = tcpstore_ready,
    .unfinished = tcpstore_unfinished,
    .buffered = tcpstore_held,
    .memory = tcpstore_taken,
};
