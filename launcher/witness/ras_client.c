/* Asks NCCL's RAS a question over TCP (ras_client.h). */
#include "launcher/witness/ras_client.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/base/buf.h"
#include "common/base/container_of.h"
#include "common/base/err.h"
#include "common/net/addr.h"
#include "launcher/witness/ras_answer.h"

#define LINE_MAX_BYTES 256

/* The protocol: what is sent, how its answer begins (NULL: it lasts until the connection is closed), time allowed. */
static const struct step {
    const char *send, *begins;
    int ms;
} steps[] = {{"CLIENT PROTOCOL 2\n", "SERVER PROTOCOL ", RAS_LINE_MS},
             {"SET FORMAT json\n", "OK", RAS_LINE_MS},
             {"STATUS\n", NULL, RAS_ANSWER_MS}};
enum { STEP_FORMAT = 1, STEP_STATUS = 2 };

struct attempt {               /* one connection; freed when its handle is closed */
    struct ras_client *client; /* NULL: given up */
    uv_tcp_t tcp;
    uv_connect_t connect;
    uv_write_t write;
    int step;
    struct buf in;
};

struct ras_client {
    struct ras_client_options o;
    uv_timer_t timer;
    struct attempt *attempt;
    char **addresses;
    int n, at;
    uint64_t end_ms; /* by the loop's clock */
    char why[320];
};

static void attempt_next(struct ras_client *c);

static void on_attempt_closed(uv_handle_t *h)
{
    struct attempt *t = container_of(h, struct attempt, tcp);
    buf_free(&t->in);
    free(t);
}

static void drop_attempt(struct ras_client *c)
{
    uv_timer_stop(&c->timer);
    if (c->attempt) {
        c->attempt->client = NULL;
        uv_close((uv_handle_t *)&c->attempt->tcp, on_attempt_closed);
    }
    c->attempt = NULL;
}

static void forget(struct ras_client *c)
{
    for (int i = 0; i < c->n; i++)
        free(c->addresses[i]);
    free(c->addresses);
    c->addresses = NULL;
    c->n = c->at = 0;
}

void ras_client_abandon(struct ras_client *c)
{
    if (!c)
        return;
    drop_attempt(c);
    forget(c);
}

static void fail(struct ras_client *c, bool too_old)
{
    ras_client_abandon(c);
    c->o.failed(c->o.arg, c->why, too_old);
}

static void refuse(struct ras_client *c, const char *why)
{
    snprintf(c->why, sizeof c->why, "%s: %.220s", c->addresses[c->at], why);
    drop_attempt(c);
    c->at++;
    attempt_next(c);
}

static void on_late(uv_timer_t *timer)
{
    struct ras_client *c = container_of(timer, struct ras_client, timer);
    refuse(c, "no answer came in time");
}

static void on_written(uv_write_t *req, int status)
{
    struct attempt *t = container_of(req, struct attempt, write);
    if (t->client && status < 0)
        refuse(t->client, uv_strerror(status));
}

static void begin_step(struct attempt *t, int step)
{
    struct ras_client *c = t->client;
    const uint64_t now = uv_now(c->o.loop), left = c->end_ms > now ? c->end_ms - now : 0;
    const uint64_t ms = (uint64_t)steps[step].ms;
    uv_buf_t out = uv_buf_init((char *)steps[step].send, (unsigned)strlen(steps[step].send));
    t->step = step;
    buf_clear(&t->in);
    uv_timer_start(&c->timer, on_late, ms < left ? ms : left, 0);
    const int rc = uv_write(&t->write, (uv_stream_t *)&t->tcp, &out, 1, on_written);
    if (rc < 0)
        refuse(c, uv_strerror(rc));
}

static void end_step(struct attempt *t)
{
    struct ras_client *c = t->client;
    if (strncasecmp(t->in.data, steps[t->step].begins, strlen(steps[t->step].begins)) == 0)
        begin_step(t, t->step + 1);
    else if (t->step == STEP_FORMAT && strncasecmp(t->in.data, "ERROR", 5) == 0) {
        snprintf(c->why, sizeof c->why, "%s: it answers no JSON, so NCCL is older than 2.28.7", c->addresses[c->at]);
        fail(c, true);
    } else
        refuse(c, "that is not NCCL's RAS");
}

/* All of it is there. */
static void end_answer(struct attempt *t)
{
    struct ras_client *c = t->client;
    char why[200] = "";
    struct buf text = t->in;
    t->in = (struct buf){0};
    uv_timer_stop(&c->timer);
    if (t->step == STEP_STATUS && text.len && c->o.answer(c->o.arg, c->at, &text, why, sizeof why))
        ras_client_abandon(c);
    else
        refuse(c, why[0] ? why : "it closed the connection without an answer");
    buf_free(&text);
}

static void on_alloc(uv_handle_t *h, size_t suggested, uv_buf_t *ret)
{
    struct attempt *t = container_of(h, struct attempt, tcp);
    const size_t n = suggested < 65536 ? suggested : 65536;
    *ret = buf_reserve(&t->in, n) == 0 ? uv_buf_init(t->in.data + t->in.len, (unsigned)n) : uv_buf_init(NULL, 0);
}

static void on_read(uv_stream_t *s, ssize_t n, const uv_buf_t *b)
{
    struct attempt *t = container_of(s, struct attempt, tcp);
    (void)b;
    if (!t->client || n == 0)
        return;
    if (n == UV_EOF) {
        end_answer(t);
        return;
    }
    if (n < 0) {
        refuse(t->client, n == UV_ENOBUFS ? "its answer is too large" : uv_strerror((int)n));
        return;
    }
    t->in.len += (size_t)n;
    t->in.data[t->in.len] = '\0';
    if (t->step == STEP_STATUS)
        return;
    if (memchr(t->in.data, '\n', t->in.len))
        end_step(t);
    else if (t->in.len > LINE_MAX_BYTES)
        refuse(t->client, "that is not NCCL's RAS");
}

static void on_connected(uv_connect_t *req, int status)
{
    struct attempt *t = container_of(req, struct attempt, connect);
    if (!t->client)
        return;
    if (status < 0 || (status = uv_read_start((uv_stream_t *)&t->tcp, on_alloc, on_read)) < 0)
        refuse(t->client, status == UV_ECONNREFUSED ? "nobody listens there" : uv_strerror(status));
    else
        begin_step(t, 0);
}

/* Parse "localhost" or an address; other names would need a look-up. */
static int parse(const char *text, struct sockaddr_storage *ret)
{
    struct host_port p;
    char host[64];
    const int port = addr_split(text, strlen(text), &p) && p.port ? addr_port(p.port, p.port_len) : -1;
    if (port < 0 || p.host_len >= sizeof host)
        return -EINVAL;
    snprintf(host, sizeof host, "%.*s", (int)p.host_len, p.host);
    if (strcmp(host, "localhost") == 0)
        snprintf(host, sizeof host, "127.0.0.1");
    return strchr(host, ':') ? uv_ip6_addr(host, port, (struct sockaddr_in6 *)ret)
                             : uv_ip4_addr(host, port, (struct sockaddr_in *)ret);
}

static int start_attempt(struct ras_client *c)
{
    struct sockaddr_storage to = {0};
    TRY(parse(c->addresses[c->at], &to));
    struct attempt *t = calloc(1, sizeof *t);
    if (!t)
        return UV_ENOMEM;
    buf_init(&t->in, RAS_ANSWER_MAX);
    t->client = c;
    c->attempt = t;
    uv_tcp_init(c->o.loop, &t->tcp);
    uv_timer_start(&c->timer, on_late, RAS_LINE_MS, 0);
    return uv_tcp_connect(&t->connect, &t->tcp, (const struct sockaddr *)&to, on_connected);
}

/* Try the next address. The recursion is limited by the number of addresses, one for each worker of a node. */
static void attempt_next(struct ras_client *c)
{
    while (c->at < c->n && uv_now(c->o.loop) < c->end_ms) {
        const int rc = start_attempt(c);
        if (rc == 0)
            return;
        snprintf(c->why, sizeof c->why, "%s: %s", c->addresses[c->at],
                 rc == -EINVAL ? "an address of IPv4 or IPv6 with a port is expected" : uv_strerror(rc));
        drop_attempt(c);
        c->at++;
    }
    fail(c, false);
}

int ras_client_ask(struct ras_client *c, const char *const *addresses, int n)
{
    ras_client_abandon(c);
    c->addresses = calloc((size_t)n + 1, sizeof *c->addresses);
    if (!c->addresses)
        return -ENOMEM;
    for (; c->n < n; c->n++)
        if (!(c->addresses[c->n] = strdup(addresses[c->n]))) {
            forget(c);
            return -ENOMEM;
        }
    uv_update_time(c->o.loop);
    c->end_ms = uv_now(c->o.loop) + RAS_QUESTION_MS;
    snprintf(c->why, sizeof c->why, "it has no worker");
    attempt_next(c);
    return 0;
}

int ras_client_open(struct ras_client **ret, const struct ras_client_options *o)
{
    struct ras_client *c = calloc(1, sizeof *c);
    if (!c)
        return -ENOMEM;
    c->o = *o;
    uv_timer_init(o->loop, &c->timer);
    *ret = c;
    return 0;
}

static void on_client_closed(uv_handle_t *h)
{
    free(container_of(h, struct ras_client, timer));
}

void ras_client_close(struct ras_client *c)
{
    if (!c)
        return;
    ras_client_abandon(c);
    uv_close((uv_handle_t *)&c->timer, on_client_closed);
}
