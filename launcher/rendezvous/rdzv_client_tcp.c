#include <errno.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "common/base/choice.h"
#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/base/log.h"
#include "common/job/exitcode.h"
#include "common/job/slurm.h"
#include "common/net/tls_stream.h"
#include "launcher/rendezvous/rdzv_tcp.h"

#define PAUSE_FIRST_MS 50
#define PAUSE_MAX_MS 1000
#define DIAL_MS 5000

static const char *const mode_names[] = {TCP_MODES(CHOICE_NAME)};

static void dial(struct tcp *t);

static void set_mode(struct tcp *t, enum tcp_mode mode)
{
    if (mode != t->mode)
        log_debug("rendezvous", "%s -> %s", mode_names[t->mode], mode_names[mode]);
    t->mode = mode;
}

/* --- the clock */

static bool waits_to_reach(const struct tcp *t)
{
    return t->mode == TCP_JOINING && !t->up && t->o.on_progress;
}

static void still_out_of_reach(struct tcp *t)
{
    struct rdzv_progress p = {.state = RDZV_JOINING, .min_nodes = t->o.job.min_nodes, .max_nodes = t->o.job.max_nodes};
    if (t->stranger)
        snprintf(p.text, sizeof p.text, "%.*s", (int)sizeof p.text - 1, t->why);
    else if (t->why[0])
        snprintf(p.text, sizeof p.text, "cannot reach %.*s", (int)sizeof p.text - 14, t->why);
    else
        snprintf(p.text, sizeof p.text, "connecting to %.200s", t->o.endpoint);
    tcp_progress(t, &p);
}

static void on_clock(uv_timer_t *timer)
{
    struct tcp *t = timer->data;
    int64_t now;
    t->clock_due = 0;
    now = tcp_check(t);
    if (t->closing)
        return;
    const struct tcp_asked *first = &t->asked[t->asked_first % TCP_ASKED_MAX];
    if (t->conn && !t->up && now >= t->greet_due)
        tcp_give_up(t, "it does not answer");
    else if (t->asked_first != t->asked_last && now >= first->due)
        tcp_give_up(t, "it does not answer any more");
    else if (waits_to_reach(t) && now >= t->progress_at + TCP_PROGRESS_MS)
        still_out_of_reach(t);
    tcp_arm(t);
}

/* Moved with every answer, so that it wakes nobody as long as all is well. */
void tcp_arm(struct tcp *t)
{
    int64_t due = INT64_MAX, now = clock_ms();
    if (t->closing)
        return;
    if (t->mode == TCP_RUNNING)
        due = lease_until(&t->lease);
    if (t->conn && !t->up && t->greet_due < due)
        due = t->greet_due;
    if (t->asked_first != t->asked_last && t->asked[t->asked_first % TCP_ASKED_MAX].due < due)
        due = t->asked[t->asked_first % TCP_ASKED_MAX].due;
    if (waits_to_reach(t) && t->progress_at + TCP_PROGRESS_MS < due)
        due = t->progress_at + TCP_PROGRESS_MS;
    if (due == t->clock_due)
        return;
    t->clock_due = due;
    uv_update_time(t->loop);
    if (due == INT64_MAX)
        uv_timer_stop(&t->clock);
    else
        uv_timer_start(&t->clock, on_clock, due > now ? (uint64_t)(due - now) : 0, 0);
}

int64_t tcp_check(struct tcp *t)
{
    int64_t now = clock_ms();
    char why[SILENCE_TEXT_MAX];
    if (t->closing || t->mode != TCP_RUNNING || now < lease_until(&t->lease))
        return now;
    silence_text(now - t->lease.acked, t->o.still_ms ? t->o.still_ms(t->o.arg, t->lease.acked) : 0, why);
    tcp_fence(t, why);
    if (t->conn || t->dial)
        tcp_give_up(t, why);
    return now;
}

void tcp_lease_moved(struct tcp *t)
{
    if (t->o.on_lease)
        t->o.on_lease(t->o.arg, t->mode == TCP_RUNNING ? lease_until(&t->lease) : 0);
    tcp_arm(t);
}

/* --- endings */

void tcp_fence(struct tcp *t, const char *why)
{
    if (t->mode != TCP_RUNNING && t->mode != TCP_DONE)
        return;
    const bool workers = t->mode == TCP_RUNNING;
    set_mode(t, TCP_FENCED);
    t->failing = false;
    tcp_alive_stop(t);
    if (workers && t->o.on_lease)
        t->o.on_lease(t->o.arg, clock_ms());
    t->o.on_fence(t->o.arg, why);
}

void tcp_fail(struct tcp *t, int code, const char *fmt, ...)
{
    char why[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(why, sizeof why, fmt, ap);
    va_end(ap);
    if (t->mode == TCP_OVER)
        return;
    if (t->mode == TCP_RUNNING) /* not where they are done */
        tcp_fence(t, "");
    set_mode(t, TCP_OVER);
    tcp_alive_stop(t);
    uv_timer_stop(&t->retry);
    t->o.on_failed(t->o.arg, code, why);
}

/* --- the connection */

static unsigned jitter(struct tcp *t, int64_t max)
{
    t->rng = t->rng * 1103515245u + 12345u;
    return max > 0 ? (t->rng >> 8) % (unsigned)max : 0;
}

static void on_retry(uv_timer_t *timer)
{
    struct tcp *t = timer->data;
    tcp_check(t);
    if (t->closing || t->mode == TCP_OVER || t->mode == TCP_FENCED)
        return;
    if (t->up)
        tcp_greet(t);
    else if (!t->dial && !t->conn)
        dial(t);
}

void tcp_again(struct tcp *t)
{
    const int64_t most =
        t->mode == TCP_RUNNING && t->o.heartbeat_ms / 2 < PAUSE_MAX_MS ? t->o.heartbeat_ms / 2 : PAUSE_MAX_MS;
    if (t->closing || t->mode == TCP_OVER || t->mode == TCP_FENCED)
        return;
    const int64_t pause = t->pause_ms < most ? t->pause_ms : most;
    t->pause_ms = pause ? 2 * pause : PAUSE_FIRST_MS;
    uv_update_time(t->loop);
    uv_timer_start(&t->retry, on_retry, (uint64_t)(pause / 2 + jitter(t, pause / 2 + 20)), 0);
}

static void out_of_reach(struct tcp *t, const char *why)
{
    const bool first = !t->why[0];
    const int64_t now = clock_ms();
    if (!t->away)
        t->away = now;
    snprintf(t->why, sizeof t->why, "%s", why);
    if (t->mode == TCP_RUNNING || t->mode == TCP_FENCED || t->mode == TCP_OVER)
        return;
    if (now - t->away >= t->o.connect_ms) {
        tcp_fail(t, EXIT_UNAVAILABLE, "cannot reach the rendezvous at %s within %lld s: %s", t->o.endpoint,
                 (long long)(t->o.connect_ms / 1000), why);
        return;
    }
    if (first)
        t->progress_at = 0; /* who waits for it may want to do something about it */
    if (waits_to_reach(t))
        still_out_of_reach(t);
}

void tcp_reached(struct tcp *t)
{
    t->away = 0;
    t->pause_ms = 0;
    tcp_alive_stop(t);
}

/* Nothing that was said on it counts. It ends with a reset, which proves nothing of this node. */
static void drop(struct tcp *t)
{
    const struct linger reset = {.l_onoff = 1};
    if (t->dial)
        dial_cancel(t->dial);
    t->dial = NULL;
    if (t->conn) {
        setsockopt(rdzv_conn_fd(t->conn), SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
        if (t->up && t->o.on_socket)
            t->o.on_socket(t->o.arg, -1);
        rdzv_conn_close(t->conn);
    }
    t->conn = NULL;
    t->up = t->next_open = false;
    t->asked_first = t->asked_last = 0;
}

void tcp_give_up(struct tcp *t, const char *why)
{
    char text[640];
    if (t->closing)
        return;
    log_info("rendezvous", "the connection to %s is given up: %s", t->o.endpoint, why);
    snprintf(text, sizeof text, "%.120s%s %s", t->o.endpoint, t->stranger ? "" : ":", why);
    drop(t);
    if (t->mode == TCP_RUNNING) {
        lease_lost(&t->lease, clock_ms());
        tcp_alive_start(t);
    }
    out_of_reach(t, text);
    tcp_again(t);
}

static void on_lost(void *arg, enum rdzv_lost how, const char *why)
{
    struct tcp *t = arg;
    tcp_check(t);
    if (!t->conn)
        return; /* the check gave it up */
    if (how == RDZV_DENIED && t->mode == TCP_JOINING) {
        tcp_fail(t, EXIT_USAGE_ERROR, "the rendezvous at %s and this node do not trust each other: %s", t->o.endpoint,
                 why);
        drop(t);
        return;
    }
    t->stranger = how == RDZV_STRANGER;
    tcp_give_up(t, why);
}

static void on_reply(void *arg, const redisReply *r)
{
    struct tcp *t = arg;
    tcp_check(t);
    if (!t->conn)
        return;
    tcp_on_reply(t, r);
    tcp_arm(t);
}

static void on_ready(void *arg)
{
    const struct linger reset = {.l_onoff = 1};
    struct tcp *t = arg;
    tcp_check(t);
    if (!t->conn)
        return;
    t->up = true;
    setsockopt(rdzv_conn_fd(t->conn), SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    if (t->o.on_socket)
        t->o.on_socket(t->o.arg, rdzv_conn_fd(t->conn));
    tcp_greet(t);
    tcp_arm(t);
}

/* Both ends have the same address: nobody stands between us. */
static bool on_this_host(int fd)
{
    struct sockaddr_storage a = {0}, b = {0};
    socklen_t na = sizeof a, nb = sizeof b;
    if (getsockname(fd, (struct sockaddr *)&a, &na) < 0 || getpeername(fd, (struct sockaddr *)&b, &nb) < 0)
        return false;
    if (a.ss_family == AF_INET)
        return ((struct sockaddr_in *)&a)->sin_addr.s_addr == ((struct sockaddr_in *)&b)->sin_addr.s_addr;
    return memcmp(&((struct sockaddr_in6 *)&a)->sin6_addr, &((struct sockaddr_in6 *)&b)->sin6_addr, 16) == 0;
}

static int64_t greeting_ms(const struct tcp *t)
{
    return t->mode == TCP_RUNNING ? t->o.heartbeat_ms : DIAL_MS;
}

static void on_dialled(void *arg, int fd, const char *text)
{
    struct tcp *t = arg;
    struct err e = {0};
    t->dial = NULL;
    t->stranger = false;
    if (fd < 0) {
        lease_dialled(&t->lease, t->dial_begun, fd == -ECONNREFUSED || fd == -ECONNRESET);
        tcp_check(t);
        if (t->mode == TCP_RUNNING)
            tcp_lease_moved(t);
        out_of_reach(t, text);
        tcp_again(t);
        return;
    }
    const struct rdzv_conn_options o = {.tls = t->tls,
                                        .server_name = t->to.host,
                                        .token = t->tokens.n ? &t->tokens.v[0] : NULL,
                                        .unproved = t->o.insecure || on_this_host(fd),
                                        .ready = on_ready,
                                        .reply = on_reply,
                                        .lost = on_lost,
                                        .arg = t};
    t->greet_due = clock_ms() + greeting_ms(t);
    if (rdzv_conn_open(&t->conn, t->loop, fd, &o, &e) < 0) {
        tcp_give_up(t, e.text);
        return;
    }
    tcp_check(t);
    tcp_arm(t);
}

static void dial(struct tcp *t)
{
    struct err e = {0};
    t->dial_begun = clock_ms();
    if (dial_start(&t->dial, t->loop, &t->to, greeting_ms(t), on_dialled, t, &e) < 0)
        tcp_give_up(t, e.text);
}

/* --- the agent's calls */

static int tcp_join(struct rdzv_client *c, struct err *e)
{
    struct tcp *t = (struct tcp *)c;
    (void)e;
    if (t->mode == TCP_OVER)
        return 0;
    set_mode(t, TCP_JOINING);
    t->joined = false;
    t->progress_at = clock_ms();
    tcp_alive_stop(t);
    tcp_lease_moved(t);
    if (t->up)
        tcp_greet(t);
    else if (!t->dial && !t->conn) {
        t->away = clock_ms();
        if (t->pause_ms == 0)
            dial(t);
        else
            tcp_again(t);
    }
    return 0;
}

static int tcp_fail_round(struct rdzv_client *c, const struct rdzv_cause *cause, struct err *e)
{
    struct tcp *t = (struct tcp *)c;
    (void)e;
    tcp_check(t);
    if (t->mode != TCP_RUNNING)
        return 0;
    t->failing = true;
    t->cause = *cause;
    if (t->up)
        tcp_say(t, ASK_FAIL);
    return 0;
}

static int tcp_done(struct rdzv_client *c, struct err *e)
{
    struct tcp *t = (struct tcp *)c;
    (void)e;
    tcp_check(t);
    if (t->mode != TCP_RUNNING)
        return 0;
    set_mode(t, TCP_DONE);
    tcp_alive_stop(t);
    tcp_lease_moved(t);
    if (t->up)
        tcp_say(t, ASK_DONE);
    return 0;
}

static int tcp_leave(struct rdzv_client *c, const struct rdzv_cause *why, struct err *e)
{
    struct tcp *t = (struct tcp *)c;
    (void)e;
    t->leaving = true;
    t->why_leaving = why ? *why : (struct rdzv_cause){.rank = -1};
    t->parting = t->mode == TCP_RUNNING || t->mode == TCP_FENCED;
    if (t->mode != TCP_OVER && !t->join_sent)
        tcp_end(t, &(struct rdzv_news){.kind = RDZV_NEWS_END, .exit_code = EXIT_REQUEUE});
    else if (t->up && t->mode != TCP_OVER)
        tcp_say(t, ASK_LEAVE);
    return 0;
}

static int tcp_report(struct rdzv_client *c, const char *fields, struct err *e)
{
    struct tcp *t = (struct tcp *)c;
    (void)e;
    if (t->up && t->mode == TCP_RUNNING)
        tcp_say_report(t, fields);
    return 0;
}

static void on_closed(uv_handle_t *h)
{
    struct tcp *t = h->data;
    if (--t->open_handles > 0)
        return;
    auth_tokens_free(&t->tokens);
    tls_context_free(t->tls);
    free(t);
}

/* With no workers the end is in good order, and this node is known to be gone. */
static void tcp_close(struct rdzv_client *c)
{
    const struct linger orderly = {0};
    struct tcp *t = (struct tcp *)c;
    if (!t || t->closing)
        return;
    t->closing = true;
    dial_cancel(t->dial);
    if (t->conn && t->mode != TCP_RUNNING && t->mode != TCP_FENCED)
        setsockopt(rdzv_conn_fd(t->conn), SOL_SOCKET, SO_LINGER, &orderly, sizeof orderly);
    rdzv_conn_close(t->conn);
    tcp_alive_stop(t);
    uv_close((uv_handle_t *)&t->clock, on_closed);
    uv_close((uv_handle_t *)&t->retry, on_closed);
    uv_close((uv_handle_t *)&t->alive.tick, on_closed);
}

static int prepare(struct tcp *t, struct err *e)
{
    enum auth_origin origin;
    TRY(endpoint_parse(&t->to, t->o.endpoint, RDZV_PORT, e));
    if (t->o.tls)
        TRY(tls_context_client(&t->tls, t->o.tls_ca, NULL, NULL, e));
    if (t->o.insecure && !t->o.token_file)
        return 0;
    return auth_tokens_own(&t->tokens, t->o.token_file, &origin, e);
}

static int tcp_open(struct rdzv_client **ret, uv_loop_t *loop, const struct rdzv_client_options *o, struct err *e)
{
    struct tcp *t = calloc(1, sizeof *t);
    if (!t)
        return err_errno(e, ENOMEM, "rendezvous");
    t->base.ops = &rdzv_client_tcp_ops;
    t->o = *o;
    t->loop = loop;
    t->lease = (struct lease){.silence_ms = o->job.silence_ms, .grace_ms = o->daemon_grace_ms};
    t->rng = (unsigned)clock_ns();
    uv_timer_init(loop, &t->clock);
    uv_timer_init(loop, &t->retry);
    uv_timer_init(loop, &t->alive.tick);
    t->clock.data = t->retry.data = t->alive.tick.data = t;
    t->open_handles = 3;
    int rc = prepare(t, e);
    if (rc < 0) {
        tcp_close(&t->base);
        return rc;
    }
    *ret = &t->base;
    return 0;
}

const struct rdzv_client_ops rdzv_client_tcp_ops = {
    .name = "tcp",
    .open = tcp_open,
    .join = tcp_join,
    .fail = tcp_fail_round,
    .done = tcp_done,
    .leave = tcp_leave,
    .report = tcp_report,
    .close = tcp_close,
};
