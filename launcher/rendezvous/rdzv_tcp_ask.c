/* What this node asks of the rendezvous, and when an answer is overdue. See rdzv_tcp.h. */
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/job/exitcode.h"
#include "common/net/addr.h"
#include "common/rdzv/wire/rdzv_wire.h"
#include "launcher/rendezvous/rdzv_tcp.h"

/* How long an answer may take beyond the time it may be held: a lost path is to be dialled again while the lease still
 * runs. */
static int64_t patience_ms(const struct tcp *t)
{
    return t->mode == TCP_RUNNING ? t->o.heartbeat_ms : t->o.job.silence_ms + t->o.heartbeat_ms;
}

/* The answer to a request says when we were heard last: at its beginning. So requests follow each other faster than one
 * per heartbeat, but not so fast that an idle agent wakes twice. */
static int64_t hold_ms(const struct tcp *t)
{
    const int64_t hold = t->o.heartbeat_ms * 31 / 32;
    if (t->mode == TCP_OVER || (t->parting && t->mode == TCP_JOINING && !t->joined))
        return 0;
    return t->mode == TCP_JOINING && hold > TCP_PROGRESS_MS ? TCP_PROGRESS_MS : hold;
}

static void note_request(struct tcp *t, enum tcp_ask what, int64_t at)
{
    struct tcp_asked *a = &t->asked[t->asked_last++ % TCP_ASKED_MAX];
    *a = (struct tcp_asked){.what = what, .at = at, .due = at + patience_ms(t), .joining = t->mode == TCP_JOINING};
    if (what == ASK_NEXT)
        a->due += hold_ms(t);
    t->next_open = t->next_open || what == ASK_NEXT;
}

static void give_request(struct tcp *t, enum tcp_ask what, int argc, const char *const *argv,
                         int (*send)(struct rdzv_conn *, int, const char *const *, const size_t *))
{
    int64_t at = clock_ms(); /* before it is sent: the lease counts from here */
    if (t->asked_last - t->asked_first == TCP_ASKED_MAX) {
        if (what != ASK_REPORT)
            tcp_give_up(t, "it answers nothing");
        return;
    }
    int rc = send(t->conn, argc, argv, NULL);
    if (rc < 0)
        tcp_give_up(t, strerror(-rc));
    else
        note_request(t, what, at);
    tcp_arm(t);
}

static void send_request(struct tcp *t, enum tcp_ask what, int argc, const char *const *argv)
{
    give_request(t, what, argc, argv, rdzv_conn_send);
}

/* The address that others reach this node by, unless the user named one: where its connection comes from. */
static void own_address(const struct tcp *t, char ret[RDZV_ADDR_MAX + 1])
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

static int join_record(struct tcp *t, int port, struct buf *out)
{
    struct rdzv_event ev = {.kind = RDZV_JOIN,
                            .round = t->base.past.round,
                            .slots = t->o.slots,
                            .node_rank = t->o.node_rank,
                            .waits = t->o.waits,
                            .numbered = t->o.numbered,
                            .restarts = t->base.past.restarts,
                            .port = port};
    memcpy(ev.instance, t->base.past.instance, sizeof ev.instance);
    snprintf(ev.node, sizeof ev.node, "%s", t->o.node);
    own_address(t, ev.addr);
    snprintf(ev.addrs, sizeof ev.addrs, "%s", t->o.addrs ? t->o.addrs : "");
    snprintf(ev.role, sizeof ev.role, "%s", t->o.role ? t->o.role : "");
    TRY(rdzv_event_encode(&ev, out));
    return rdzv_config_encode(&t->o.job, out);
}

static void send_join(struct tcp *t)
{
    struct buf b = {0};
    int port = t->o.store_port && !t->leaving ? t->o.store_port(t->o.arg) : 0;
    if (port < 0) {
        tcp_fail(t, EXIT_UNAVAILABLE, "this node cannot listen for its workers' store: %s", strerror(-port));
        return;
    }
    t->joined_round = t->base.past.round;
    t->join_sent = true;
    if (join_record(t, port, &b) == 0)
        send_request(t, ASK_JOIN, 4, (const char *[]){"RDZV.JOIN", t->o.run_id, t->o.node, b.data});
    else
        tcp_give_up(t, "no memory for a request");
    buf_free(&b);
}

static bool encode_cause(struct tcp *t, enum rdzv_event_kind kind, const struct rdzv_cause *cause, struct buf *out)
{
    struct rdzv_event ev = {.kind = kind, .round = t->round, .cause = *cause};
    snprintf(ev.node, sizeof ev.node, "%s", t->o.node);
    const bool ok = rdzv_event_encode(&ev, out) == 0;
    if (!ok)
        tcp_give_up(t, "no memory for a request");
    return ok;
}

static void send_fail(struct tcp *t, const char *round)
{
    struct buf b = {0};
    if (encode_cause(t, RDZV_FAIL, &t->cause, &b))
        send_request(t, ASK_FAIL, 5, (const char *[]){"RDZV.FAIL", t->o.run_id, t->o.node, round, b.data});
    buf_free(&b);
}

static void send_leave(struct tcp *t)
{
    struct buf b = {0};
    if (t->why_leaving.exit_code == EXIT_OK && !t->why_leaving.text[0])
        send_request(t, ASK_LEAVE, 3, (const char *[]){"RDZV.LEAVE", t->o.run_id, t->o.node});
    else if (encode_cause(t, RDZV_LEAVE, &t->why_leaving, &b))
        send_request(t, ASK_LEAVE, 4, (const char *[]){"RDZV.LEAVE", t->o.run_id, t->o.node, b.data});
    buf_free(&b);
}

int tcp_keep_report(struct tcp *t, const char *fields)
{
    buf_clear(&t->report);
    return buf_addstr(&t->report, fields);
}

/* Sent together with the request that the caller sends next: the host wakes up for that one anyway. */
static void queue_report(struct tcp *t)
{
    if (t->report.len > 0 && (t->mode == TCP_RUNNING || t->mode == TCP_DONE))
        give_request(t, ASK_REPORT, 4, (const char *[]){"RDZV.REPORT", t->o.run_id, t->o.node, t->report.data},
                     rdzv_conn_queue);
    buf_clear(&t->report);
}

/* As a report: whoever does not know it refuses it, which is nobody's business. */
void tcp_say_failure(struct tcp *t, const char *text)
{
    send_request(t, ASK_REPORT, 4, (const char *[]){"RDZV.POSTMORTEM", t->o.run_id, t->o.node, text});
}

void tcp_say(struct tcp *t, enum tcp_ask what)
{
    char seq[24], hold[24], round[24], from[24];
    if (!t->up || t->closing)
        return;
    snprintf(seq, sizeof seq, "%llu", (unsigned long long)t->seq);
    snprintf(round, sizeof round, "%llu", (unsigned long long)t->round);
    snprintf(from, sizeof from, "%d", t->members_from);
    snprintf(hold, sizeof hold, "%lld", (long long)hold_ms(t));
    if (what == ASK_FAIL || what == ASK_DONE || what == ASK_LEAVE || (what == ASK_NEXT && !t->next_open))
        queue_report(t);
    if (!t->up || t->closing)
        return;
    switch (what) {
    case ASK_JOIN:
        send_join(t);
        break;
    case ASK_NEXT:
        if (!t->next_open)
            send_request(t, what, t->members_from ? 7 : 5,
                         (const char *[]){"RDZV.NEXT", t->o.run_id, t->o.node, seq, hold, "FROM", from});
        break;
    case ASK_FAIL:
        send_fail(t, round);
        break;
    case ASK_DONE:
        send_request(t, what, 4, (const char *[]){"RDZV.DONE", t->o.run_id, t->o.node, round});
        break;
    case ASK_LEAVE:
        send_leave(t);
        break;
    case ASK_STATUS:
        send_request(t, what, 3, (const char *[]){"RDZV.STATUS", t->o.run_id, "BRIEF"});
        break;
    case ASK_REPORT:
        break;
    }
}

/* One that leaves first hears whether it is let go: JOIN of a node that is forgotten would make it a new one. */
void tcp_greet(struct tcp *t)
{
    if (t->mode == TCP_FENCED || t->mode == TCP_OVER)
        return;
    if (t->failing)
        tcp_say(t, ASK_FAIL);
    if (t->leaving)
        tcp_say(t, ASK_LEAVE);
    if (t->mode == TCP_DONE)
        tcp_say(t, ASK_DONE);
    tcp_say(t, t->mode == TCP_JOINING && !t->leaving ? ASK_JOIN : ASK_NEXT);
}
