/* One question to a host of a list: dial, prove, RDZV.SEATS. See host_question.h. */
#include "launcher/rendezvous/host_question.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/container_of.h"
#include "common/base/err.h"
#include "common/rdzv/wire/rdzv_wire.h"
#include "launcher/rendezvous/rdzv_conn.h"
#include "launcher/rendezvous/rdzv_tcp.h"

struct host_question {
    struct host_question_options o;
    uv_loop_t *loop;
    struct dial *dial;
    struct rdzv_conn *conn;
    uv_timer_t late;
};

static void answer(struct host_question *q, enum hosts_answer answer, int seats, uint64_t round, const char *why)
{
    q->o.answered(q->o.arg, q, answer, seats, round, why);
    host_question_close(q);
}

static void fail(struct host_question *q, enum hosts_answer how, const char *why)
{
    answer(q, how, 0, 0, why);
}

static void on_late(uv_timer_t *t)
{
    fail(container_of(t, struct host_question, late), HOSTS_NONE, "it does not answer");
}

static void say_daemon(struct host_question *q, const redisReply *r)
{
    char state[40] = "";
    rdzv_field_find(r->str, r->len, "state_id", state, sizeof state);
    q->o.daemon(q->o.arg, q, state[0] || rdzv_field_number(r->str, r->len, "leads", 0) == 0 ? state : NULL);
    host_question_close(q);
}

static void on_reply(void *arg, const redisReply *r)
{
    struct host_question *q = arg;
    if (r->type != REDIS_REPLY_STRING) {
        fail(q, HOSTS_NONE, r->type == REDIS_REPLY_ERROR ? rdzv_refusal(r->str) : "it is no host of this list");
        return;
    }
    if (rdzv_field_number(r->str, r->len, "daemon", 0) == 1) {
        say_daemon(q, r);
        return;
    }
    answer(q, HOSTS_HEARS, (int)rdzv_field_number(r->str, r->len, "heard", 0),
           (uint64_t)rdzv_field_number(r->str, r->len, "round", 0), "");
}

static void on_lost(void *arg, enum rdzv_lost how, const char *why)
{
    fail(arg, how == RDZV_DENIED ? HOSTS_DENIED : HOSTS_NONE, why);
}

static void on_ready(void *arg)
{
    struct host_question *q = arg;
    const char *const v[] = {"RDZV.SEATS", q->o.run, q->o.node};
    rdzv_conn_send(q->conn, 3, v, NULL); /* else it is lost, which is said */
}

static void on_dialled(void *arg, int fd, const char *text)
{
    struct host_question *q = arg;
    struct err e = {0};
    q->dial = NULL;
    if (fd < 0) {
        fail(q, fd == -ECONNREFUSED || fd == -ECONNRESET ? HOSTS_REFUSED : HOSTS_NONE, text);
        return;
    }
    const struct rdzv_conn_options o = {.tls = q->o.tls,
                                        .server_name = q->o.to->host,
                                        .token = q->o.token,
                                        .unproved = q->o.insecure || tcp_is_on_this_host(fd),
                                        .ready = on_ready,
                                        .reply = on_reply,
                                        .lost = on_lost,
                                        .arg = q};
    if (rdzv_conn_open(&q->conn, q->loop, fd, &o, &e) < 0)
        fail(q, HOSTS_NONE, e.text);
}

struct host_question *host_question_ask(uv_loop_t *loop, const struct host_question_options *o)
{
    struct host_question *q = calloc(1, sizeof *q);
    if (!q)
        return NULL;
    q->o = *o;
    q->loop = loop;
    uv_timer_init(loop, &q->late);
    uv_update_time(loop);
    uv_timer_start(&q->late, on_late, HOST_QUESTION_MS, 0);
    if (dial_start(&q->dial, loop, o->to, HOST_QUESTION_MS, on_dialled, q, NULL) == 0)
        return q;
    host_question_close(q);
    return NULL;
}

static void on_closed(uv_handle_t *h)
{
    free(container_of((uv_timer_t *)h, struct host_question, late));
}

void host_question_close(struct host_question *q)
{
    if (!q || uv_is_closing((uv_handle_t *)&q->late))
        return;
    dial_cancel(q->dial);
    rdzv_conn_close(q->conn);
    q->dial = NULL;
    q->conn = NULL;
    uv_close((uv_handle_t *)&q->late, on_closed);
}
