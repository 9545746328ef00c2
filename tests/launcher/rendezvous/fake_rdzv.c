#include "tests/launcher/rendezvous/fake_rdzv.h"

#include <assert.h>
#include <hiredis/hiredis.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct fake_conn {
    struct fake *f;
    uv_tcp_t tcp;
    uv_timer_t hold;
    redisReader *in;
    bool held, closing;
    int open_handles;
    char bytes[65536];
};

static void on_closed(uv_handle_t *h)
{
    struct fake_conn *c = h->data;
    if (--c->open_handles > 0)
        return;
    redisReaderFree(c->in);
    free(c);
}

static void drop(struct fake_conn *c, bool reset)
{
    if (c->closing)
        return;
    c->closing = true;
    for (int i = 0; i < FAKE_CONNS; i++)
        if (c->f->conns[i] == c)
            c->f->conns[i] = NULL;
    uv_close((uv_handle_t *)&c->hold, on_closed);
    if (reset && uv_tcp_close_reset(&c->tcp, on_closed) == 0)
        return;
    uv_close((uv_handle_t *)&c->tcp, on_closed);
}

static void put(struct fake_conn *c, const char *text, size_t n)
{
    struct fake *f = c->f;
    if (c->closing || f->mute)
        return;
    if (f->garbage) {
        text = f->garbage;
        n = strlen(text);
        f->garbage = NULL;
    }
    if (f->half)
        n /= 2;
    for (size_t i = 0; i < n;) {
        uv_buf_t b = uv_buf_init((char *)text + i, (unsigned)(f->split ? 1 : n));
        int rc = uv_try_write((uv_stream_t *)&c->tcp, &b, 1);
        if (rc < 0)
            return;
        i += (size_t)rc;
    }
    f->mute = f->mute || f->half;
}

static void say(struct fake_conn *c, const char *line)
{
    char text[1024];
    put(c, text, (size_t)snprintf(text, sizeof text, "%s\r\n", line));
}

static void say_bulk(struct fake_conn *c, const char *record)
{
    char text[2048];
    put(c, text, (size_t)snprintf(text, sizeof text, "$%zu\r\n%s\r\n", strlen(record), record));
}

static void end_hold(struct fake_conn *c)
{
    if (c->held)
        say(c, "$-1");
    c->held = false;
    uv_timer_stop(&c->hold);
}

static void on_hold_over(uv_timer_t *t)
{
    end_hold(t->data);
}

static void note(struct fake *f, const char *verb, const char *arg)
{
    size_t n = strlen(f->log);
    snprintf(f->log + n, sizeof f->log - n, "%s%s(%s)", n ? " " : "", verb, arg);
}

/* "round=3" of a record. */
static const char *round_of(const char *record, char *out, size_t cap)
{
    const char *at = strstr(record, " round=");
    snprintf(out, cap, "%.*s", at ? (int)strcspn(at + 1, " ") : 0, at ? at + 1 : "");
    return out;
}

static void next(struct fake_conn *c, unsigned long long last, unsigned long long hold)
{
    struct fake *f = c->f;
    f->nexts++;
    if (f->next_error)
        say(c, f->next_error);
    else if (f->seq > last)
        say_bulk(c, f->news);
    else if (hold == 0)
        say(c, "$-1");
    else {
        c->held = true;
        uv_timer_start(&c->hold, on_hold_over, hold, 0);
    }
}

static void answer(struct fake_conn *c, int argc, const char **argv)
{
    struct fake *f = c->f;
    char text[256], round[64];
    const char *verb = strncmp(argv[0], "RDZV.", 5) == 0 ? argv[0] + 5 : argv[0];
    end_hold(c);
    if (f->reset_on && strcmp(f->reset_on, verb) == 0) {
        f->reset_on = NULL;
        drop(c, true);
        return;
    }
    if (strcmp(verb, "JOIN") == 0) {
        f->joins++;
        note(f, verb, round_of(argv[3], round, sizeof round));
        snprintf(f->join, sizeof f->join, "%s", argv[3]);
        snprintf(text, sizeof text, "instance=%s epoch=1 seq=%llu first_round=1 v=1", f->instance, f->seq);
        if (f->join_error)
            say(c, f->join_error);
        else
            say_bulk(c, text);
    } else if (strcmp(verb, "NEXT") == 0) {
        note(f, verb, argv[3]);
        next(c, strtoull(argv[3], NULL, 10), strtoull(argv[4], NULL, 10));
    } else if (strcmp(verb, "STATUS") == 0) {
        say_bulk(c, "state=joining joined=5 min_nodes=8 max_nodes=8 round=0 restarts=0 missing=2,5");
    } else if (strcmp(verb, "ALIVE") == 0) {
        note(f, verb, argv[3]);
        say(c, f->alive);
    } else if (strcmp(verb, "STORE.AUTH") == 0 && f->queue) {
        f->queued = c;
    } else if (strcmp(verb, "STORE.AUTH") == 0) {
        say(c, "+OK");
    } else {
        note(f, verb, argc > 3 ? argv[3] : "");
        say(c, f->claim_error ? f->claim_error : "+OK");
    }
}

void fake_admit(struct fake *f)
{
    f->queue = false;
    say(f->queued, "+OK");
}

static void give_memory(uv_handle_t *h, size_t hint, uv_buf_t *ret)
{
    struct fake_conn *c = h->data;
    (void)hint;
    *ret = uv_buf_init(c->bytes, sizeof c->bytes);
}

static void on_read(uv_stream_t *s, ssize_t n, const uv_buf_t *b)
{
    struct fake_conn *c = s->data;
    void *r;
    (void)b;
    if (n < 0) {
        drop(c, false);
        return;
    }
    redisReaderFeed(c->in, c->bytes, (size_t)n);
    while (!c->closing && redisReaderGetReply(c->in, &r) == REDIS_OK && r) {
        redisReply *q = r;
        const char *argv[16] = {0};
        assert(q->type == REDIS_REPLY_ARRAY && q->elements < 16);
        for (size_t i = 0; i < q->elements; i++)
            argv[i] = q->element[i]->str;
        answer(c, (int)q->elements, argv);
        freeReplyObject(r);
    }
}

static void on_connection(uv_stream_t *s, int status)
{
    struct fake *f = s->data;
    struct fake_conn *c = calloc(1, sizeof *c);
    assert(c && status == 0);
    c->f = f;
    c->in = redisReaderCreate();
    uv_tcp_init(f->loop, &c->tcp);
    uv_timer_init(f->loop, &c->hold);
    c->tcp.data = c->hold.data = c;
    c->open_handles = 2;
    uv_accept(s, (uv_stream_t *)&c->tcp);
    f->connections++;
    int i = 0;
    while (i < FAKE_CONNS && f->conns[i])
        i++;
    assert(i < FAKE_CONNS);
    f->conns[i] = c;
    if (!f->deaf)
        uv_read_start((uv_stream_t *)&c->tcp, give_memory, on_read);
}

static void bind_to(struct fake *f, const char *host)
{
    struct sockaddr_storage sa;
    int n = sizeof sa;
    uv_tcp_init(f->loop, &f->listener);
    f->listener.data = f;
    if (strchr(host, ':'))
        uv_ip6_addr(host, f->port, (struct sockaddr_in6 *)&sa);
    else
        uv_ip4_addr(host, f->port, (struct sockaddr_in *)&sa);
    int rc = uv_tcp_bind(&f->listener, (struct sockaddr *)&sa, 0);
    rc = rc < 0 ? rc : uv_listen((uv_stream_t *)&f->listener, 64, on_connection);
    assert(rc == 0);
    uv_tcp_getsockname(&f->listener, (struct sockaddr *)&sa, &n);
    f->port = ntohs(((struct sockaddr_in *)&sa)->sin_port);
    f->listening = true;
}

void fake_open(struct fake *f, uv_loop_t *loop, const char *host)
{
    memset(f, 0, sizeof *f);
    f->loop = loop;
    f->instance = "aaaaaaaaaaaaaaaa";
    f->alive = "+MAJORITY";
    f->kept = -1;
    bind_to(f, host);
}

/* Nobody else is to get it: a socket that does not listen refuses, and does not stand in the way of one that will. */
static void keep_port(struct fake *f)
{
    struct sockaddr_in sa;
    int on = 1;
    uv_ip4_addr("127.0.0.1", f->port, &sa);
    f->kept = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(f->kept, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    int rc = bind(f->kept, (struct sockaddr *)&sa, sizeof sa);
    assert(rc == 0);
}

static void leave_port(struct fake *f)
{
    if (f->kept >= 0)
        close(f->kept);
    f->kept = -1;
}

void fake_listen(struct fake *f)
{
    uv_run(f->loop, UV_RUN_NOWAIT); /* the old one is closed */
    bind_to(f, "127.0.0.1");
    leave_port(f);
}

static void stop_listening(struct fake *f)
{
    if (f->listening)
        uv_close((uv_handle_t *)&f->listener, NULL);
    f->listening = false;
}

void fake_shut(struct fake *f)
{
    stop_listening(f);
    keep_port(f);
}

void fake_tell(struct fake *f, const char *news)
{
    snprintf(f->news, sizeof f->news, "%s seq=%llu", news, ++f->seq);
    for (int i = 0; i < FAKE_CONNS; i++) {
        struct fake_conn *c = f->conns[i];
        if (!c || !c->held)
            continue;
        c->held = false;
        uv_timer_stop(&c->hold);
        say_bulk(c, f->news);
    }
}

void fake_reset(struct fake *f)
{
    for (int i = 0; i < FAKE_CONNS; i++)
        if (f->conns[i])
            drop(f->conns[i], true);
}

void fake_close(struct fake *f)
{
    stop_listening(f);
    leave_port(f);
    fake_reset(f);
}
