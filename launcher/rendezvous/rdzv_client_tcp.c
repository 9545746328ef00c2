/* The agent's calls to a rendezvous behind a connection, and what its client (common/rdzv/client/client.h) asks for: a
 * clock, a dial, a connection that speaks RESP. See rdzv_tcp.h. */
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/base/log.h"
#include "common/job/exitcode.h"
#include "common/job/slurm.h"
#include "common/net/addr.h"
#include "common/net/tls_stream.h"
#include "common/rdzv/wire/rdzv_wire.h"
#include "launcher/config/home.h"
#include "launcher/rendezvous/rdzv_tcp.h"

static void on_clock(void *arg)
{
    tcp_step(arg, (struct client_event){.kind = CLIENT_TICK});
}

/* --- requests */

/* The address that others reach this node by, unless the user named one: where its connection comes from. */
static void own_source(const struct tcp *t, char ret[RDZV_ADDR_MAX + 1])
{
    struct sockaddr_storage sa = {0};
    socklen_t n = sizeof sa;
    uint8_t ip[ADDR_BYTES];
    ret[0] = '\0';
    if (t->o.addr && t->o.addr[0])
        snprintf(ret, RDZV_ADDR_MAX + 1, "%s", t->o.addr);
    else if (getsockname(rdzv_conn_fd(t->conn), (struct sockaddr *)&sa, &n) == 0 && addr_of((struct sockaddr *)&sa, ip))
        addr_text(ip, ret);
}

static int join_record(struct tcp *t, const struct client_effect *fx, struct buf *out)
{
    struct rdzv_event ev;
    client_claim(&t->c, ASK_JOIN, &ev);
    ev.port = t->o.store_port && !t->c.leaving ? t->o.store_port(t->o.arg) : 0;
    if (ev.port < 0) {
        tcp_step(t, (struct client_event){.kind = CLIENT_STORE_FAILED, .error = ev.port});
        return -ECANCELED;
    }
    ev.slots = t->o.slots;
    ev.node_rank = t->o.node_rank;
    ev.waits = t->o.waits;
    ev.numbered = t->o.numbered;
    own_source(t, ev.addr);
    snprintf(ev.addrs, sizeof ev.addrs, "%s", t->o.addrs ? t->o.addrs : "");
    snprintf(ev.role, sizeof ev.role, "%s", t->o.role ? t->o.role : "");
    TRY(rdzv_event_encode(&ev, out));
    if (t->c.o.listed)
        TRY(rdzv_field_int(out, "got", (long long)fx->got));
    return rdzv_config_encode(&t->o.job, out);
}

static int claim_record(struct tcp *t, enum client_ask what, struct buf *out)
{
    struct rdzv_event ev;
    client_claim(&t->c, what, &ev);
    return rdzv_event_encode(&ev, out);
}

static bool leaves_in_good_order(const struct tcp *t)
{
    return t->c.why_leaving.exit_code == 0 && !t->c.why_leaving.text[0];
}

static int send_request(struct tcp *t, const struct client_effect *fx)
{
    const char *run = t->o.run_id, *node = t->o.node;
    char seq[24], hold[24], round[24], from[24], got[24];
    struct buf b = {0};
    int n = 4, rc = 0;
    snprintf(seq, sizeof seq, "%llu", (unsigned long long)fx->seq);
    snprintf(round, sizeof round, "%llu",
             (unsigned long long)(fx->what == ASK_TERM && t->c.mode != CLIENT_RUNNING && t->c.mode != CLIENT_DONE
                                      ? 0
                                      : t->c.round));
    snprintf(from, sizeof from, "%d", fx->from);
    snprintf(hold, sizeof hold, "%lld", (long long)fx->ms);
    snprintf(got, sizeof got, "%llu", (unsigned long long)fx->got);
    if (fx->what == ASK_JOIN)
        rc = join_record(t, fx, &b);
    else if (fx->what == ASK_FAIL || (fx->what == ASK_LEAVE && !leaves_in_good_order(t)))
        rc = claim_record(t, fx->what, &b);
    if (rc < 0) {
        buf_free(&b);
        return rc;
    }
    const char *const text = fx->what == ASK_REPORT       ? t->c.sent.data
                             : fx->what == ASK_POSTMORTEM ? t->c.postmortem.data
                             : fx->what == ASK_ANSWER     ? t->c.answer.data
                                                          : b.data;
    const char *v[9] = {NULL, run, node, text};
    switch (fx->what) {
    case ASK_TERM:
        memcpy(v, ((const char *[]){"RDZV.TERM", run, node, t->c.epoch, t->c.seen, round}), 6 * sizeof *v);
        n = 6;
        break;
    case ASK_NEXT:
        memcpy(v, ((const char *[]){"RDZV.NEXT", run, node, seq, hold, "FROM", from}), 7 * sizeof *v);
        n = fx->from ? 7 : 5;
        if (t->c.o.listed) {
            v[n++] = "GOT";
            v[n++] = got;
        }
        break;
    case ASK_FAIL:
        memcpy(v, ((const char *[]){"RDZV.FAIL", run, node, round, text}), 5 * sizeof *v);
        n = 5;
        break;
    case ASK_DONE:
        v[0] = "RDZV.DONE";
        v[3] = round;
        break;
    case ASK_LEAVE:
        v[0] = "RDZV.LEAVE";
        n = text ? 4 : 3;
        break;
    case ASK_STATUS:
        memcpy(v, ((const char *[]){"RDZV.STATUS", run, "BRIEF"}), 3 * sizeof *v);
        n = 3;
        break;
    case ASK_JOIN:
        v[0] = "RDZV.JOIN";
        break;
    case ASK_REPORT:
        v[0] = "RDZV.REPORT";
        break;
    case ASK_ANSWER:
        memcpy(v, ((const char *[]){"RDZV.ANSWER", run, node, seq, text}), 5 * sizeof *v);
        n = 5;
        break;
    case ASK_POSTMORTEM: /* whoever does not know it refuses it, which is nobody's business */
        v[0] = "RDZV.POSTMORTEM";
        break;
    }
    rc = fx->together ? rdzv_conn_queue(t->conn, n, v, NULL) : rdzv_conn_send(t->conn, n, v, NULL);
    buf_free(&b);
    return rc;
}

static void carry_out_send(struct tcp *t, const struct client_effect *fx)
{
    const int rc = t->conn ? send_request(t, fx) : -EPIPE;
    if (rc < 0 && rc != -ECANCELED && t->conn)
        tcp_step(t, (struct client_event){.kind = CLIENT_LOST, .how = RDZV_LOST, .text = strerror(-rc)});
}

/* --- the connection */

/* It ends with a reset, which proves nothing of this node. */
static void hang_up(struct tcp *t, bool unheard)
{
    const struct linger reset = {.l_onoff = 1};
    if (unheard)
        tcp_list_unheard(t);
    dial_list_cancel(t->dial);
    t->dial = NULL;
    if (!t->conn)
        return;
    setsockopt(rdzv_conn_fd(t->conn), SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    if (t->has_socket && t->o.on_socket)
        t->o.on_socket(t->o.arg, -1);
    t->has_socket = false;
    rdzv_conn_close(t->conn);
    t->conn = NULL;
}

static void on_lost(void *arg, enum rdzv_lost how, const char *why)
{
    tcp_step(arg, (struct client_event){.kind = CLIENT_LOST, .how = how, .text = why});
}

static void on_reply(void *arg, const redisReply *r)
{
    static const enum client_reply_kind kinds[] = {[REDIS_REPLY_STATUS] = REPLY_STATUS,
                                                   [REDIS_REPLY_STRING] = REPLY_RECORD,
                                                   [REDIS_REPLY_NIL] = REPLY_NIL,
                                                   [REDIS_REPLY_ERROR] = REPLY_ERROR};
    const size_t n = sizeof kinds / sizeof *kinds;
    const bool known = r->type == REDIS_REPLY_STATUS || ((size_t)r->type < n && kinds[r->type] != REPLY_STATUS);
    struct client_reply reply = {
        .kind = known ? kinds[r->type] : REPLY_OTHER, .text = r->str ? r->str : "", .len = r->str ? r->len : 0};
    if (tcp_list_is_other_state(arg, r))
        return;
    if (r->type == REDIS_REPLY_ERROR && strncmp(r->str, "STANDBY ", 8) == 0) {
        reply.text = tcp_list_turn(arg, r->str);
        reply.len = strlen(reply.text);
    } else {
        ((struct tcp *)arg)->list.outside = 0;
    }
    tcp_step(arg, (struct client_event){.kind = CLIENT_REPLY, .reply = reply});
}

static void on_ready(void *arg)
{
    const struct linger reset = {.l_onoff = 1};
    struct tcp *t = arg;
    setsockopt(rdzv_conn_fd(t->conn), SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    t->has_socket = true;
    if (t->o.on_socket)
        t->o.on_socket(t->o.arg, rdzv_conn_fd(t->conn));
    tcp_step(t, (struct client_event){.kind = CLIENT_READY});
}

bool tcp_is_on_this_host(int fd)
{
    struct sockaddr_storage a = {0}, b = {0};
    socklen_t na = sizeof a, nb = sizeof b;
    uint8_t own[ADDR_BYTES], peer[ADDR_BYTES];
    return getsockname(fd, (struct sockaddr *)&a, &na) == 0 && getpeername(fd, (struct sockaddr *)&b, &nb) == 0 &&
           addr_of((struct sockaddr *)&a, own) && addr_of((struct sockaddr *)&b, peer) &&
           memcmp(own, peer, ADDR_BYTES) == 0;
}

static void on_dialled(void *arg, int which, int fd, const char *text)
{
    struct tcp *t = arg;
    struct err e = {0};
    t->dial = NULL;
    t->at = which;
    tcp_step(t, (struct client_event){.kind = CLIENT_DIALLED, .error = fd < 0 ? fd : 0, .text = text});
    if (fd < 0)
        return;
    if (t->closing || !t->c.connected) { /* the clock has given it up */
        close(fd);
        return;
    }
    const struct rdzv_conn_options o = {.tls = t->tls,
                                        .server_name = t->to[t->at].host,
                                        .token = t->tokens.n ? &t->tokens.v[0] : NULL,
                                        .unproved = t->o.insecure || tcp_is_on_this_host(fd),
                                        .ready = on_ready,
                                        .reply = on_reply,
                                        .lost = on_lost,
                                        .arg = t};
    if (rdzv_conn_open(&t->conn, t->loop, fd, &o, &e) < 0)
        tcp_step(t, (struct client_event){.kind = CLIENT_LOST, .how = RDZV_LOST, .text = e.text});
}

static void start_dial(struct tcp *t, int64_t ms)
{
    struct err e = {0};
    const int rc = dial_list_start(&t->dial, t->loop, t->to, t->to_count, t->at, ms, on_dialled, t, &e);
    if (rc < 0)
        tcp_step(t, (struct client_event){.kind = CLIENT_DIALLED, .error = rc, .text = e.text});
}

/* --- effects */

static void tell(struct tcp *t, const struct client_effect *fx)
{
    if (fx->members && t->o.on_members)
        t->o.on_members(t->o.arg, fx->members);
    if (fx->news.kind == RDZV_NEWS_ROUND && !fx->news.spare)
        tcp_alive_note(t, &fx->news);
    if (t->seeker.told)
        t->seeker.told(t->seeker.arg, &fx->news);
    t->o.on_news(t->o.arg, &fx->news);
}

static void carry_out(struct tcp *t, const struct client_effect *fx)
{
    switch (fx->kind) {
    case CLIENT_DIAL:
        start_dial(t, fx->ms);
        break;
    case CLIENT_HANG_UP:
        hang_up(t, fx->ms != 0);
        break;
    case CLIENT_SEND:
        carry_out_send(t, fx);
        break;
    case CLIENT_TELL:
        tell(t, fx);
        break;
    case CLIENT_FENCE:
        t->o.on_fence(t->o.arg, fx->text);
        break;
    case CLIENT_FAILED:
        t->o.on_failed(t->o.arg, fx->code, fx->text);
        break;
    case CLIENT_LEASE:
        if (t->o.on_lease)
            t->o.on_lease(t->o.arg, fx->ms);
        break;
    case CLIENT_PROGRESS:
        if (t->o.on_progress)
            t->o.on_progress(t->o.arg, &fx->progress);
        break;
    case CLIENT_ALIVE:
        if (fx->ms)
            tcp_alive_start(t);
        else
            tcp_alive_stop(t);
        break;
    case CLIENT_SEEK:
        t->seeker.seek(t->seeker.arg, fx->ms != 0);
        break;
    case CLIENT_ASKED:
        if (t->o.on_asked)
            t->o.on_asked(t->o.arg, fx->text);
        break;
    case CLIENT_ACKED:
        t->seeker.acked(t->seeker.arg);
        break;
    case CLIENT_WARN:
        log_warn("rendezvous", "%s", fx->text);
        break;
    case CLIENT_NOTE:
        log_info("rendezvous", "%s", fx->text);
        break;
    }
}

/* The callbacks may ask for more: it is carried out after what was asked for before. */
static void apply(struct tcp *t)
{
    const struct client_effect *fx;
    if (t->applying)
        return;
    t->applying = true;
    while ((fx = client_effect(&t->c))) {
        if (!t->closing)
            carry_out(t, fx);
        client_done(&t->c);
    }
    t->applying = false;
    t->base.past = t->c.past;
    if (!t->closing) /* moved with every answer: it wakes nobody as long as all is well */
        deadline_timer_set(&t->clock, client_deadline(&t->c));
}

void tcp_step(struct tcp *t, struct client_event ev)
{
    if (t->closing)
        return;
    if (t->o.still_ms && t->c.mode == CLIENT_RUNNING)
        ev.still_ms = t->o.still_ms(t->o.arg, t->c.lease.acked);
    client_step(&t->c, &ev, clock_ms());
    apply(t);
}

/* --- the agent's calls */

int tcp_join(struct rdzv_client *c, struct err *e)
{
    (void)e;
    tcp_step((struct tcp *)c, (struct client_event){.kind = CLIENT_JOIN});
    return 0;
}

int tcp_fail(struct rdzv_client *c, const struct rdzv_cause *cause, struct err *e)
{
    (void)e;
    tcp_step((struct tcp *)c, (struct client_event){.kind = CLIENT_FAIL, .cause = cause});
    return 0;
}

int tcp_done(struct rdzv_client *c, struct err *e)
{
    (void)e;
    tcp_step((struct tcp *)c, (struct client_event){.kind = CLIENT_FINISH});
    return 0;
}

int tcp_leave(struct rdzv_client *c, const struct rdzv_cause *why, struct err *e)
{
    (void)e;
    tcp_step((struct tcp *)c, (struct client_event){.kind = CLIENT_LEAVE, .cause = why});
    return 0;
}

int tcp_report(struct rdzv_client *c, const char *fields, struct err *e)
{
    (void)e;
    tcp_step((struct tcp *)c, (struct client_event){.kind = CLIENT_REPORT, .text = fields});
    return 0;
}

int tcp_answer(struct rdzv_client *c, uint64_t id, const char *text, struct err *e)
{
    (void)e;
    tcp_step((struct tcp *)c, (struct client_event){.kind = CLIENT_ANSWER, .id = id, .text = text});
    return 0;
}

/* On the connection that brought END: nobody dials for this. */
int tcp_publish(struct rdzv_client *c, const char *text, struct err *e)
{
    struct tcp *t = (struct tcp *)c;
    if (!t->c.up || t->c.mode != CLIENT_OVER)
        return err_set(e, -ENOTCONN, "the rendezvous cannot be reached");
    tcp_step(t, (struct client_event){.kind = CLIENT_PUBLISH, .text = text});
    return 0;
}

bool tcp_is_answered(const struct rdzv_client *c)
{
    return client_is_answered(&((const struct tcp *)c)->c);
}

/* --- life */

static void on_closed(uv_handle_t *h)
{
    struct tcp *t = h->data;
    if (--t->open_handles > 0)
        return;
    auth_tokens_free(&t->tokens);
    tls_context_free(t->tls);
    client_finish(&t->c);
    free(t);
}

/* With no workers the end is in good order, and this node is known to be gone. */
void tcp_close(struct rdzv_client *c)
{
    const struct linger orderly = {0};
    struct tcp *t = (struct tcp *)c;
    if (!t || t->closing)
        return;
    t->closing = true;
    tcp_list_close(t);
    dial_list_cancel(t->dial);
    if (t->conn && t->c.mode != CLIENT_RUNNING && t->c.mode != CLIENT_FENCED)
        setsockopt(rdzv_conn_fd(t->conn), SOL_SOCKET, SO_LINGER, &orderly, sizeof orderly);
    rdzv_conn_close(t->conn);
    tcp_alive_stop(t);
    uv_close((uv_handle_t *)&t->clock.uv, on_closed);
    uv_close((uv_handle_t *)&t->alive.tick, on_closed);
}

static int prepare(struct tcp *t, struct err *e)
{
    enum auth_origin origin;
    int port;
    if (!t->seeker.seek) {
        TRY(home_parse_endpoint(t->o.endpoint, RDZV_PORT, t->to[0].host, &port, e));
        snprintf(t->to[0].port, sizeof t->to[0].port, "%d", port);
    }
    if (t->o.tls)
        TRY(tls_context_client(&t->tls, t->o.tls_ca, NULL, NULL, e));
    if (t->o.insecure && !t->o.token_file)
        return 0;
    return auth_tokens_own(&t->tokens, t->o.token_file, &origin, e);
}

int tcp_open(struct tcp **ret, uv_loop_t *loop, const struct rdzv_client_options *o, const struct rdzv_client_ops *ops,
             const struct tcp_seeker *s, struct err *e)
{
    struct tcp *t = calloc(1, sizeof *t);
    if (!t)
        return err_errno(e, ENOMEM, "rendezvous");
    t->base.ops = ops;
    t->o = *o;
    t->loop = loop;
    t->to_count = 1;
    if (s)
        t->seeker = *s;
    client_init(&t->c, &(struct client_options){.job = o->job,
                                                .heartbeat_ms = o->heartbeat_ms,
                                                .connect_ms = o->connect_ms,
                                                .grace_ms = o->daemon_grace_ms,
                                                .run_id = o->run_id,
                                                .node = o->node,
                                                .endpoint = o->endpoint,
                                                .elected = s != NULL,
                                                .listed = s && s->listed,
                                                .shows_progress = o->on_progress != NULL,
                                                .seed = (unsigned)clock_ns()});
    deadline_timer_init(&t->clock, loop, on_clock, t);
    uv_timer_init(loop, &t->alive.tick);
    t->clock.uv.data = t->alive.tick.data = t;
    t->open_handles = 2;
    int rc = prepare(t, e);
    if (rc == 0 && !s && o->secret_help)
        t->c.o.secret_help = o->secret_help(o->arg, t->to[0].host, true);
    if (rc < 0) {
        tcp_close(&t->base);
        return rc;
    }
    *ret = t;
    return 0;
}

void tcp_address(struct tcp *t, const struct endpoint *to, const char *where, const char *epoch, const char *seen)
{
    t->to[0] = *to;
    tcp_step(t, (struct client_event){.kind = CLIENT_ADDRESS, .text = where, .epoch = epoch, .seen = seen});
}

void tcp_go_direct(struct tcp *t, const struct endpoint *to, int n, const char *state)
{
    memcpy(t->to, to, (size_t)n * sizeof *to);
    t->to_count = n;
    snprintf(t->list.state, sizeof t->list.state, "%s", state);
    tcp_step(t, (struct client_event){.kind = CLIENT_DIRECT, .text = t->o.endpoint});
}

void tcp_trouble(struct tcp *t, const char *why)
{
    tcp_step(t, (struct client_event){.kind = CLIENT_TROUBLE, .text = why});
}

static int tcp_open_one(struct rdzv_client **ret, uv_loop_t *loop, const struct rdzv_client_options *o, struct err *e)
{
    struct tcp *t;
    TRY(tcp_open(&t, loop, o, &rdzv_client_tcp_ops, NULL, e));
    *ret = &t->base;
    return 0;
}

const struct rdzv_client_ops rdzv_client_tcp_ops = {
    TCP_CALLS, .name = "tcp", .open = tcp_open_one, .join = tcp_join, .close = tcp_close,
};
