/* While the daemon is away: does the rest of the round still reach the bootstrap store on group rank 0? */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "launcher/rendezvous/rdzv_tcp.h"

#define TICKS_PER_HEARTBEAT                                                                                            \
    4 /* everybody's first words come within one of these, and the second ask finds a majority */
#define TICK_MIN_MS 50

static void hang_up(struct tcp_alive *a)
{
    dial_cancel(a->dial);
    rdzv_conn_close(a->conn);
    a->dial = NULL;
    a->conn = NULL;
    a->ready = a->waiting = false;
}

static void on_reply(void *arg, const redisReply *r)
{
    struct tcp *t = arg;
    struct tcp_alive *a = &t->alive;
    if (!a->on || !a->waiting)
        return;
    a->waiting = false;
    if (r->type == REDIS_REPLY_STATUS && strcmp(r->str, "MAJORITY") == 0)
        tcp_step(t, (struct client_event){.kind = CLIENT_MAJORITY, .at = a->asked});
}

static void send_alive(struct tcp *t)
{
    struct tcp_alive *a = &t->alive;
    char round[24];
    snprintf(round, sizeof round, "%llu", (unsigned long long)t->c.round);
    a->asked = clock_ms();
    a->waiting = rdzv_conn_send(a->conn, 4, (const char *[]){"RDZV.ALIVE", t->o.run_id, t->o.node, round}, NULL) == 0;
}

static void on_ready(void *arg)
{
    struct tcp *t = arg;
    t->alive.ready = true;
    send_alive(t);
}

static void on_lost(void *arg, enum rdzv_lost how, const char *why)
{
    struct tcp *t = arg;
    (void)how;
    (void)why;
    hang_up(&t->alive); /* the next tick dials again */
}

static void on_dialled(void *arg, int fd, const char *text)
{
    struct tcp *t = arg;
    const struct rdzv_conn_options o = {.ready = on_ready, .reply = on_reply, .lost = on_lost, .arg = t};
    (void)text;
    t->alive.dial = NULL;
    if (fd >= 0 && t->alive.on)
        rdzv_conn_open(&t->alive.conn, t->loop, fd, &o, NULL);
    else if (fd >= 0)
        close(fd);
}

/* On group rank 0 the others' words arrive; it counts itself. */
static void count(struct tcp *t)
{
    int64_t now = clock_ms();
    int others = t->o.majority ? t->o.majority(t->o.arg) : 0;
    if (2 * (others + 1) > t->alive.group_world)
        tcp_step(t, (struct client_event){.kind = CLIENT_MAJORITY, .at = now});
}

static void on_tick(uv_timer_t *timer)
{
    struct tcp *t = timer->data;
    struct tcp_alive *a = &t->alive;
    if (t->closing || !a->on)
        return;
    if (a->group_rank == 0)
        count(t);
    else if (a->conn && a->ready && !a->waiting)
        send_alive(t);
    else if (a->waiting && clock_ms() - a->asked >= t->o.heartbeat_ms)
        hang_up(a);
    else if (!a->conn && !a->dial)
        dial_start(&a->dial, t->loop, &a->leader, t->o.heartbeat_ms, on_dialled, t, NULL);
}

void tcp_alive_note(struct tcp *t, const struct rdzv_news *round)
{
    struct tcp_alive *a = &t->alive;
    a->group_rank = round->group_rank;
    a->group_world = round->group_world;
    snprintf(a->leader.host, sizeof a->leader.host, "%s", round->leader_addr);
    snprintf(a->leader.port, sizeof a->leader.port, "%d", round->leader_port);
}

void tcp_alive_start(struct tcp *t)
{
    struct tcp_alive *a = &t->alive;
    int64_t every = t->o.heartbeat_ms / TICKS_PER_HEARTBEAT;
    if (a->on || t->closing)
        return;
    every = every > TICK_MIN_MS ? every : TICK_MIN_MS;
    a->on = true;
    uv_update_time(t->loop);
    uv_timer_start(&a->tick, on_tick, 0, (uint64_t)every);
}

void tcp_alive_stop(struct tcp *t)
{
    if (!t->alive.on)
        return;
    t->alive.on = false;
    hang_up(&t->alive);
    uv_timer_stop(&t->alive.tick);
}
