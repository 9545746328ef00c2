/* The life of the connection: dialled, proved, lost, and dialled again after a pause. See rdzv_tcp.h. */
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/base/log.h"
#include "common/job/exitcode.h"
#include "common/net/addr.h"
#include "launcher/rendezvous/rdzv_tcp.h"

#define PAUSE_FIRST_MS 50
#define PAUSE_MAX_MS 1000
#define DIAL_MS 5000
/* To prove who we are: a few times the --auth-timeout of the server. Until strangers before us have had theirs, we are
 * in its queue, and who dials again goes to the queue's end. */
#define GREET_MS 10000

int64_t tcp_left_ms(const struct tcp *t)
{
    const int64_t left = t->away + t->o.connect_ms - clock_ms();
    return !t->away ? 0 : left > 0 ? left : 1;
}

bool tcp_waits_to_reach(const struct tcp *t)
{
    return (t->mode == TCP_JOINING || t->mode == TCP_DONE) && !t->up && t->o.on_progress;
}

void tcp_still_out_of_reach(struct tcp *t)
{
    struct rdzv_progress p = {.left_ms = tcp_left_ms(t)};
    if (t->stranger)
        snprintf(p.text, sizeof p.text, "%.*s", (int)sizeof p.text - 1, t->why);
    else if (t->why[0])
        snprintf(p.text, sizeof p.text, "cannot reach %.*s", (int)sizeof p.text - 14, t->why);
    else
        snprintf(p.text, sizeof p.text, "connecting to %.200s", t->o.endpoint);
    tcp_progress(t, &p);
}

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
        tcp_dial(t);
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
    if (tcp_waits_to_reach(t))
        tcp_still_out_of_reach(t);
}

void tcp_reached(struct tcp *t)
{
    t->away = 0;
    t->pause_ms = 0;
    tcp_alive_stop(t);
}

/* Nothing that was sent on it counts. It ends with a reset, which proves nothing of this node. */
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
    uint8_t own[ADDR_BYTES], peer[ADDR_BYTES];
    return getsockname(fd, (struct sockaddr *)&a, &na) == 0 && getpeername(fd, (struct sockaddr *)&b, &nb) == 0 &&
           addr_of((struct sockaddr *)&a, own) && addr_of((struct sockaddr *)&b, peer) &&
           memcmp(own, peer, ADDR_BYTES) == 0;
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
    t->greet_due = clock_ms() + GREET_MS;
    if (rdzv_conn_open(&t->conn, t->loop, fd, &o, &e) < 0) {
        tcp_give_up(t, e.text);
        return;
    }
    tcp_check(t);
    tcp_arm(t);
}

void tcp_dial(struct tcp *t)
{
    struct err e = {0};
    t->dial_begun = clock_ms();
    const int64_t ms = t->mode == TCP_RUNNING ? t->o.heartbeat_ms : DIAL_MS;
    if (dial_start(&t->dial, t->loop, &t->to, ms, on_dialled, t, &e) < 0)
        tcp_give_up(t, e.text);
}
