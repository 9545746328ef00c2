/* Connections as parties of jobs.
 *
 * A NEXT blocks its connection. It is answered with news, or with nil at its timeout, or with nil because the
 * client's next request has arrived. */
#include "common/base/err.h"
#include "common/net/addr.h"
#include "common/rdzv/wire/rdzv_wire.h"
#include "rendezvousd/commands/command_rdzv.h"
#include "rendezvousd/jobs/jobs.h"
#include "rendezvousd/net/gate.h"
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

/* State of a server with jobs: a handle that continues connections which are woken outside of a request. */
struct rdzv_door {
    struct server *s;
    uv_idle_t idle;
};

/* State of a connection that has used the rendezvous. */
struct rdzv_conn {
    struct conn *c;
    struct jobs_party *party;
    char principal[256], local[RDZV_ADDR_MAX + 1];
};

/* --- the server's side */

static void on_idle(uv_idle_t *h)
{
    struct rdzv_door *d = h->data;
    uv_idle_stop(h);
    conn_drain_ready(d->s);
}

static void on_door_closed(uv_handle_t *h)
{
    struct rdzv_door *d = h->data;
    struct server *s = d->s;
    free(d);
    server_handle_closed(s);
}

int server_set_jobs(struct server *s, struct jobs *j, struct err *e)
{
    s->jobs = j;
    if (s->door)
        return 0;
    s->door = calloc(1, sizeof *s->door);
    if (!s->door)
        return err_set(e, -ENOMEM, "no memory for a rendezvous");
    s->door->s = s;
    uv_idle_init(s->loop, &s->door->idle);
    s->door->idle.data = s->door;
    s->open_handles++;
    return 0;
}

void server_close_door(struct server *s)
{
    if (s->door)
        uv_close((uv_handle_t *)&s->door->idle, on_door_closed);
    s->door = NULL;
}

/* --- news */

void rdzv_say_record_(struct conn *c, int rc, struct buf *b)
{
    if (rc < 0)
        reply_error(&c->reply, "OOM no memory for the answer");
    else
        reply_bulk(&c->reply, b->len ? b->data : "", b->len);
    buf_free(b);
}

static void say_news(struct conn *c, const struct rdzv_news *news, const char *member_addrs, int more)
{
    struct buf b = {0};
    if (!news) {
        reply_error(&c->reply, jobs_party_is_void(c->rdzv->party)
                                   ? "FENCED a newer connection stands for this node"
                                   : "NOJOB this host has given up the job: another one may lead it");
        return;
    }
    int rc = rdzv_news_encode(news, &b);
    if (rc == 0 && member_addrs)
        rc = rdzv_field_text(&b, "member_addrs", member_addrs);
    if (rc == 0 && more)
        rc = rdzv_field_int(&b, "more", more);
    rdzv_say_record_(c, rc, &b);
}

static void next_ended(struct conn *c, void *arg)
{
    struct err e = {0};
    (void)arg;
    jobs_next_cancel(c->rdzv->party);
    const int rc = jobs_may_answer(c->s->jobs, &e);
    if (rc < 0)
        rdzv_say_error_(c, rc, &e);
    else
        reply_nil(&c->reply);
}

static void next_forgotten(struct conn *c, void *arg)
{
    (void)arg;
    jobs_next_cancel(c->rdzv->party);
}

const struct blocked_ops rdzv_next_ops_ = {.timeout = next_ended, .forget = next_forgotten, .interrupt = next_ended};

static void wake(struct conn *c)
{
    conn_wake(c);
    if (c->s->door)
        uv_idle_start(&c->s->door->idle, on_idle);
}

static void on_told(void *arg, const struct rdzv_news *news, const char *member_addrs, int more)
{
    struct conn *c = ((struct rdzv_conn *)arg)->c;
    say_news(c, news, member_addrs, more);
    if (c->blocked == &rdzv_next_ops_)
        wake(c); /* if it is not blocked, NEXT itself answers at once */
}

static void on_again(void *arg)
{
    struct conn *c = ((struct rdzv_conn *)arg)->c;
    if (c->blocked != &rdzv_next_ops_)
        return;
    next_ended(c, NULL);
    wake(c);
}

static void on_asked(void *arg, const char *record, size_t n)
{
    struct conn *c = ((struct rdzv_conn *)arg)->c;
    reply_bulk(&c->reply, record, n);
    if (c->blocked == &rdzv_next_ops_)
        wake(c); /* if it is not blocked, NEXT itself answers at once */
}

struct jobs_party *rdzv_party_of_(struct conn *c, struct err *e)
{
    struct sockaddr_storage sa;
    int n = sizeof sa;
    if (c->rdzv)
        return c->rdzv->party;
    struct rdzv_conn *r = calloc(1, sizeof *r);
    if (!r) {
        err_set(e, -ENOMEM, "no memory for a member");
        return NULL;
    }
    r->c = c;
    if (c->principal)
        strncpy(r->principal, c->principal, sizeof r->principal - 1);
    uint8_t ip[ADDR_BYTES];
    if (uv_tcp_getsockname(&c->tcp, (struct sockaddr *)&sa, &n) == 0 && addr_of((struct sockaddr *)&sa, ip))
        addr_text(ip, r->local);
    const struct jobs_party_options o = {.principal = r->principal,
                                         .addr = gate_peer_host(c),
                                         .local = r->local,
                                         .told = on_told,
                                         .asked = on_asked,
                                         .again = on_again,
                                         .arg = r};
    if (jobs_party_open(&r->party, c->s->jobs, &o, e) < 0) {
        free(r);
        return NULL;
    }
    c->rdzv = r;
    return r->party;
}

/* --- questions to nodes */

struct question {
    struct conn *c;
    struct jobs_asking *asking;
};

static void say_answers(struct conn *c, void *arg)
{
    struct question *q = arg;
    struct buf out = {0};
    const int rc = jobs_ask_end(q->asking, &out);
    rdzv_say_record_(c, rc, &out);
    free(q);
}

static void forget_question(struct conn *c, void *arg)
{
    struct question *q = arg;
    (void)c;
    jobs_ask_end(q->asking, NULL);
    free(q);
}

static const struct blocked_ops ask_ops = {.timeout = say_answers, .forget = forget_question};

static void on_answered(void *arg)
{
    struct question *q = arg;
    struct conn *c = q->c;
    say_answers(c, q);
    wake(c);
}

void rdzv_ask_(struct conn *c, const char *run, struct jobs_ask *ask)
{
    struct err e = {0};
    struct question *q = calloc(1, sizeof *q);
    int rc = q ? 0 : err_set(&e, -ENOMEM, "no memory for a question");
    if (q) {
        q->c = c;
        ask->answered = on_answered;
        ask->arg = q;
        rc = jobs_ask(&q->asking, c->s->jobs, c->principal ? c->principal : "", run, ask, &e);
    }
    if (rc == 0) {
        conn_block(c, &ask_ops, q, ask->ms);
        return;
    }
    free(q);
    rdzv_say_error_(c, rc, &e);
}

/* Has the peer closed its end in good order? The result of a read or a write does not tell: if bytes and a reset
 * arrive together, libuv reports an end of file, and a failed write consumes the error of a reset. The socket's
 * state does tell: CLOSE_WAIT, or an EPIPE that remains if a reset came after the end. */
static bool peer_ended(struct conn *c)
{
    struct tcp_info info = {0};
    socklen_t n = sizeof info;
    int fd, error = 0;
    char byte;
    if (c->end == END_RESET || uv_fileno((uv_handle_t *)&c->tcp, &fd) < 0 ||
        getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &n) < 0)
        return false;
    if (info.tcpi_state == TCP_CLOSE_WAIT)
        return c->end == END_OF_FILE || recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
    n = sizeof error;
    return c->end == END_OF_FILE && info.tcpi_state == TCP_CLOSE &&
           getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &n) == 0 && error == EPIPE;
}

void rdzv_conn_gone(struct conn *c)
{
    struct rdzv_conn *r = c->rdzv;
    if (!r)
        return;
    bool proved = peer_ended(c);
    c->rdzv = NULL;
    jobs_party_close(r->party, proved ? JOBS_GONE : JOBS_SILENT);
    free(r);
}
