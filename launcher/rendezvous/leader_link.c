/* Sends the newest text to group rank 0's bootstrap store and dials it when needed. See leader_link.h. */
#include "launcher/rendezvous/leader_link.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/err.h"
#include "launcher/rendezvous/rdzv_conn.h"
#include "launcher/rendezvous/rdzv_dial.h"

struct leader_link {
    struct leader_link_options o;
    struct dial *dial;
    struct rdzv_conn *conn;
    bool ready;     /* the connection takes requests */
    char *pending;  /* to be sent when it does */
    uint64_t round; /* that it is about */
    int sent;       /* not answered yet */
};

void leader_link_hang_up(struct leader_link *l)
{
    dial_cancel(l->dial);
    rdzv_conn_close(l->conn);
    free(l->pending);
    l->pending = NULL;
    l->dial = NULL;
    l->conn = NULL;
    l->ready = false;
    l->sent = 0;
}

static void lose(struct leader_link *l, const char *why)
{
    leader_link_hang_up(l);
    l->o.lost(l->o.arg, why ? why : "");
}

static int send_pending(struct leader_link *l)
{
    char round[24];
    if (!l->ready || !l->pending)
        return 0;
    snprintf(round, sizeof round, "%" PRIu64, l->round);
    const char *const request[] = {l->o.command, l->o.run_id, l->o.node, round, l->pending};
    const int rc = rdzv_conn_send(l->conn, 5, request, NULL);
    l->sent += rc == 0;
    free(l->pending);
    l->pending = NULL;
    return rc;
}

static void on_ready(void *arg)
{
    struct leader_link *l = arg;
    l->ready = true;
    if (send_pending(l) < 0)
        lose(l, "no memory");
}

static void on_reply(void *arg, const redisReply *reply)
{
    struct leader_link *l = arg;
    l->sent--;
    l->o.answer(l->o.arg, reply->type == REDIS_REPLY_STATUS ? reply->str : NULL);
}

static void on_lost(void *arg, enum rdzv_lost how, const char *why)
{
    (void)how;
    lose(arg, why);
}

static void on_dialled(void *arg, int fd, const char *text)
{
    struct leader_link *l = arg;
    const struct rdzv_conn_options o = {.ready = on_ready, .reply = on_reply, .lost = on_lost, .arg = l};
    l->dial = NULL;
    if (fd < 0 || rdzv_conn_open(&l->conn, l->o.loop, fd, &o, NULL) < 0)
        lose(l, text);
}

int leader_link_tell(struct leader_link *l, uint64_t round, const struct endpoint *to, char *text)
{
    free(l->pending);
    l->pending = text;
    l->round = round;
    if (!text)
        return -ENOMEM;
    if (l->conn)
        return send_pending(l);
    return l->dial ? 0 : dial_start(&l->dial, l->o.loop, to, LEADER_LINK_MS, on_dialled, l, NULL);
}

int leader_link_unanswered(const struct leader_link *l)
{
    return l->sent + (l->pending != NULL);
}

int leader_link_open(struct leader_link **ret, const struct leader_link_options *o)
{
    struct leader_link *l = calloc(1, sizeof *l);
    if (!l)
        return -ENOMEM;
    l->o = *o;
    *ret = l;
    return 0;
}

void leader_link_close(struct leader_link *l)
{
    if (l)
        leader_link_hang_up(l);
    free(l);
}
