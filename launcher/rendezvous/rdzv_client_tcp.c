/* The agent's calls to a rendezvous behind a connection, and the clock of this node. See rdzv_tcp.h. */
#include <errno.h>
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
#include "launcher/config/home.h"
#include "launcher/rendezvous/rdzv_tcp.h"

static const char *const mode_names[] = {TCP_MODES(CHOICE_NAME)};

static void set_mode(struct tcp *t, enum tcp_mode mode)
{
    if (mode != t->mode)
        log_debug("rendezvous", "%s -> %s", mode_names[t->mode], mode_names[mode]);
    t->mode = mode;
}

/* --- the clock */

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
    else if (tcp_waits_to_reach(t) && now >= t->progress_at + TCP_PROGRESS_MS)
        tcp_still_out_of_reach(t);
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
    if (tcp_waits_to_reach(t) && t->progress_at + TCP_PROGRESS_MS < due)
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
    t->base.past.restarts++; /* our round is broken by this; what its rendezvous says of it is the truth */
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
            tcp_dial(t);
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
    if (t->mode == TCP_RUNNING && tcp_keep_report(t, fields) < 0)
        return err_set(e, -ENOMEM, "no memory for a report");
    return 0;
}

/* On the connection that brought END: nobody dials for this. */
static int tcp_publish(struct rdzv_client *c, const char *text, struct err *e)
{
    struct tcp *t = (struct tcp *)c;
    if (!t->up || t->mode != TCP_OVER)
        return err_set(e, -ENOTCONN, "the rendezvous cannot be reached");
    tcp_say_failure(t, text);
    return 0;
}

static bool tcp_is_answered(const struct rdzv_client *c)
{
    const struct tcp *t = (const struct tcp *)c;
    return !t->up || t->asked_first == t->asked_last;
}

static void on_closed(uv_handle_t *h)
{
    struct tcp *t = h->data;
    if (--t->open_handles > 0)
        return;
    auth_tokens_free(&t->tokens);
    tls_context_free(t->tls);
    buf_free(&t->report);
    buf_free(&t->members);
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
    int port;
    TRY(home_parse_endpoint(t->o.endpoint, RDZV_PORT, t->to.host, &port, e));
    snprintf(t->to.port, sizeof t->to.port, "%d", port);
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
    .publish = tcp_publish,
    .is_answered = tcp_is_answered,
    .close = tcp_close,
};
