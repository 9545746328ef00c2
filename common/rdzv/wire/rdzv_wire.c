/* Events, news and settings of the rendezvous as records (rdzv_wire.h). */
#include "common/rdzv/wire/rdzv_wire.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/rdzv/wire/rdzv_record.h"

#define COUNT(v) (sizeof(v) / sizeof *(v))
#define MS_MAX (INT64_C(1) << 40) /* about 34 years; the sum of a few never overflows */

/* --- words */

static const char *kind_word(int v)
{
    return rdzv_event_name((enum rdzv_event_kind)v);
}

static const char *news_word(int v)
{
    static const char *const words[] = {
        [RDZV_NEWS_ROUND] = "round", [RDZV_NEWS_STOP] = "stop", [RDZV_NEWS_END] = "end"};
    return words[v];
}

static const char *why_word(int v)
{
    return rdzv_reason_name((enum rdzv_reason)v);
}

static const char *order_word(int v)
{
    static const char *const words[] = {"host", "join", "node-rank"};
    return words[v];
}

/* --- events */

#define KIND(k) (1u << (k))
enum { LAST_EVENT = RDZV_TICK };

static const struct rdzv_field event_fields[] = {
#define CAUSE (KIND(RDZV_FAIL) | KIND(RDZV_GONE) | KIND(RDZV_LEAVE))
#define TEXT(kinds, key, member) RDZV_TEXT(kinds, struct rdzv_event, key, member)
#define NUMBER(kinds, key, member, ...) RDZV_NUMBER(kinds, struct rdzv_event, key, member, __VA_ARGS__)
    RDZV_NAME(RDZV_ALL, struct rdzv_event, "kind", kind, 0, LAST_EVENT, -1, kind_word),
    TEXT(RDZV_ALL, "node", node),
    NUMBER(KIND(RDZV_FAIL) | KIND(RDZV_DONE) | KIND(RDZV_JOIN), "round", round, 0, INT64_MAX, 0),
    NUMBER(KIND(RDZV_JOIN), "slots", slots, 1, RDZV_SLOTS_MAX, 0),
    NUMBER(KIND(RDZV_JOIN), "node_rank", node_rank, -1, INT_MAX, -1),
    NUMBER(KIND(RDZV_JOIN), "waits", waits, 0, 1, 0),
    NUMBER(KIND(RDZV_JOIN), "numbered", numbered, 0, 1, 0),
    TEXT(KIND(RDZV_JOIN), "addr", addr),
    TEXT(KIND(RDZV_JOIN), "addrs", addrs),
    NUMBER(KIND(RDZV_JOIN), "port", port, 0, 65535, 0),
    TEXT(KIND(RDZV_JOIN), "role", role),
    TEXT(KIND(RDZV_JOIN), "instance", instance),
    NUMBER(KIND(RDZV_JOIN), "restarts", restarts, 0, INT_MAX, 0),
    NUMBER(CAUSE, "code", cause.exit_code, 0, 255, 0),
    NUMBER(CAUSE, "rank", cause.rank, -1, INT_MAX, -1),
    NUMBER(KIND(RDZV_FAIL), "fatal", cause.fatal, 0, 1, 0),
    TEXT(CAUSE, "text", cause.text),
#undef CAUSE
#undef TEXT
#undef NUMBER
};

int rdzv_event_encode(const struct rdzv_event *ev, struct buf *out)
{
    return rdzv_record_write(out, event_fields, COUNT(event_fields), KIND(ev->kind), ev);
}

int rdzv_event_decode(const char *p, size_t n, struct rdzv_event *ret, struct err *e)
{
    struct rdzv_event ev;
    memset(&ev, 0, sizeof ev);
    TRY(rdzv_record_read(p, n, event_fields, COUNT(event_fields), &ev, e));
    if ((int)ev.kind < 0)
        return err_set(e, -EINVAL, "the event has no kind=");
    *ret = ev;
    return 0;
}

/* --- news */

static const struct rdzv_field news_fields[] = {
#define TEXT(kinds, key, member) RDZV_TEXT(kinds, struct rdzv_news, key, member)
#define NUMBER(kinds, key, member, ...) RDZV_NUMBER(kinds, struct rdzv_news, key, member, __VA_ARGS__)
#define ROUND KIND(RDZV_NEWS_ROUND)
#define END KIND(RDZV_NEWS_END)
#define CAUSE (KIND(RDZV_NEWS_STOP) | KIND(RDZV_NEWS_END))
    RDZV_NAME(RDZV_ALL, struct rdzv_news, "kind", kind, RDZV_NEWS_ROUND, RDZV_NEWS_END, 0, news_word),
    NUMBER(RDZV_ALL, "seq", seq, 0, INT64_MAX, 0),
    NUMBER(RDZV_ALL, "round", round, 0, INT64_MAX, 0),
    RDZV_NAME(ROUND | CAUSE, struct rdzv_news, "why", why, 0, RDZV_WHY_DRAIN, 0, why_word),
    NUMBER(RDZV_ALL, "restart_count", restart_count, 0, INT_MAX, 0),
    NUMBER(ROUND | END, "group_rank", group_rank, -1, INT_MAX, -1),
    NUMBER(ROUND | END, "group_world", group_world, 0, INT_MAX, 0),
    NUMBER(ROUND, "rank_base", rank_base, -1, INT_MAX, -1),
    NUMBER(ROUND, "world_size", world_size, 0, INT_MAX, 0),
    NUMBER(ROUND, "role_base", role_base, -1, INT_MAX, -1),
    NUMBER(ROUND, "role_world", role_world, 0, INT_MAX, 0),
    TEXT(ROUND | END, "leader_addr", leader_addr),
    NUMBER(ROUND | END, "leader_port", leader_port, 0, 65535, 0),
    NUMBER(ROUND | END, "spare", spare, 0, 1, 0),
    NUMBER(END, "exit_code", exit_code, 0, 255, 0),
    NUMBER(CAUSE, "code", cause.exit_code, 0, 255, 0),
    NUMBER(CAUSE, "rank", cause.rank, -1, INT_MAX, -1),
    TEXT(CAUSE, "text", cause.text),
#undef ROUND
#undef END
#undef CAUSE
#undef TEXT
#undef NUMBER
};

int rdzv_news_encode(const struct rdzv_news *news, struct buf *out)
{
    return rdzv_record_write(out, news_fields, COUNT(news_fields), KIND(news->kind), news);
}

int rdzv_news_decode(const char *p, size_t n, struct rdzv_news *ret, struct err *e)
{
    struct rdzv_news news;
    memset(&news, 0, sizeof news);
    TRY(rdzv_record_read(p, n, news_fields, COUNT(news_fields), &news, e));
    if (!news.kind)
        return err_set(e, -EINVAL, "the news have no kind=");
    *ret = news;
    return 0;
}

/* --- settings */

static const struct rdzv_field config_fields[] = {
#define NUMBER(key, member, lo, hi) RDZV_NUMBER(RDZV_ALL, struct rdzv_config, key, member, lo, hi, LLONG_MIN)
    NUMBER("max_restarts", max_restarts, 0, INT_MAX),
    NUMBER("max_node_failures", max_node_failures, 0, INT_MAX),
    NUMBER("restart_window", restart_window_ms, 0, MS_MAX),
    NUMBER("backoff", backoff_ms, 0, MS_MAX),
    NUMBER("backoff_max", backoff_max_ms, 0, MS_MAX),
    NUMBER("backoff_reset", backoff_reset_ms, 0, MS_MAX),
    RDZV_NAME(RDZV_ALL, struct rdzv_config, "order", order, 0, RDZV_ORDER_NODE_RANK, LLONG_MIN, order_word),
    NUMBER("join_timeout", join_timeout_ms, 0, MS_MAX),
    NUMBER("last_call", last_call_ms, 0, MS_MAX),
    NUMBER("silence", silence_ms, 0, MS_MAX),
    NUMBER("kill", kill_ms, 0, MS_MAX),
    NUMBER("first_round", first_round, 0, INT64_MAX),
#undef NUMBER
};

void rdzv_config_defaults(struct rdzv_config *ret)
{
    *ret = (struct rdzv_config){.min_nodes = 1,
                                .max_nodes = 1,
                                .backoff_max_ms = 30000,
                                .backoff_reset_ms = 10000,
                                .join_timeout_ms = 600000,
                                .last_call_ms = 30000,
                                .silence_ms = 3000,
                                .kill_ms = 1000,
                                .first_round = 1};
}

int rdzv_config_encode(const struct rdzv_config *c, struct buf *out)
{
    char nnodes[32];
    snprintf(nnodes, sizeof nnodes, "%d:%d", c->min_nodes, c->max_nodes);
    TRY(rdzv_field_int(out, "v", RDZV_PROTOCOL));
    TRY(rdzv_field_text(out, "nnodes", nnodes));
    return rdzv_record_write(out, config_fields, COUNT(config_fields), RDZV_ALL, c);
}

/* MIN:MAX, or one number for both. */
static int read_nnodes(const char *p, size_t n, struct rdzv_config *c, struct err *e)
{
    char text[32] = "";
    long long min, max;
    int rc = rdzv_field_find(p, n, "nnodes", text, sizeof text);
    if (rc == 0)
        return 0;
    char whole[32];
    memcpy(whole, text, sizeof whole);
    char *colon = strchr(text, ':');
    if (colon)
        *colon = 0;
    if (rc < 0 || rdzv_record_number(text, &min) < 0 || rdzv_record_number(colon ? colon + 1 : text, &max) < 0 ||
        min < 1 || max < min || max > RDZV_NODES_MAX)
        return err_set(e, -EINVAL, "nnodes=%s: expected MIN:MAX with 1 <= MIN <= MAX <= %d", whole, RDZV_NODES_MAX);
    c->min_nodes = (int)min;
    c->max_nodes = (int)max;
    return 0;
}

int rdzv_config_decode(const char *p, size_t n, struct rdzv_config *ret, struct err *e)
{
    struct rdzv_config c;
    char version[32] = "";
    int rc = rdzv_field_find(p, n, "v", version, sizeof version);
    if (rc < 0)
        return err_set(e, -EINVAL, "field 'v' is malformed: expected v=%d", RDZV_PROTOCOL);
    long long v = 0;
    if (rc == 0 || rdzv_record_number(version, &v) < 0 || v != RDZV_PROTOCOL)
        return err_set(e, -EINVAL, "protocol version %s, but this program speaks version %d",
                       rc ? version : "is missing", RDZV_PROTOCOL);
    c = *ret;
    TRY(rdzv_record_read(p, n, config_fields, COUNT(config_fields), &c, e));
    TRY(read_nnodes(p, n, &c, e));
    *ret = c;
    return 0;
}

int rdzv_config_check_times(const struct rdzv_config *c, struct err *e)
{
    const struct {
        const char *key;
        int64_t ms, most;
    } times[] = {{"silence", c->silence_ms, RDZV_LIVENESS_MAX_MS},
                 {"kill", c->kill_ms, RDZV_LIVENESS_MAX_MS},
                 {"backoff", c->backoff_ms, RDZV_LIVENESS_MAX_MS},
                 {"backoff_max", c->backoff_max_ms, RDZV_LIVENESS_MAX_MS},
                 {"backoff_reset", c->backoff_reset_ms, RDZV_TIME_MAX_MS},
                 {"restart_window", c->restart_window_ms, RDZV_TIME_MAX_MS},
                 {"join_timeout", c->join_timeout_ms, RDZV_TIME_MAX_MS},
                 {"last_call", c->last_call_ms, RDZV_TIME_MAX_MS}};
    for (size_t i = 0; i < COUNT(times); i++)
        if (times[i].ms > times[i].most)
            return err_set(e, -EINVAL, "%s=%lld: expected at most %lld ms (%s)", times[i].key, (long long)times[i].ms,
                           (long long)times[i].most, times[i].most == RDZV_TIME_MAX_MS ? "7 days" : "10 minutes");
    return 0;
}

/* --- two agents that disagree */

static int differ(struct err *e, const char *option, const char *ours, const char *theirs)
{
    return err_set(e, ERR_REFUSED, "the job was started with %s %s, not %s", option, ours, theirs);
}

static int differ_number(struct err *e, const char *option, long long ours, long long theirs)
{
    char a[32], b[32];
    if (ours == theirs)
        return 0;
    snprintf(a, sizeof a, "%lld", ours);
    snprintf(b, sizeof b, "%lld", theirs);
    return differ(e, option, a, b);
}

static bool seconds_differ(int64_t ours, int64_t theirs, char a[32], char b[32])
{
    if (ours == theirs)
        return false;
    snprintf(a, 32, "%g", (double)ours / 1000);
    snprintf(b, 32, "%g", (double)theirs / 1000);
    if (strcmp(a, b) == 0) { /* %g rounds */
        snprintf(a, 32, "%.3f", (double)ours / 1000);
        snprintf(b, 32, "%.3f", (double)theirs / 1000);
    }
    return true;
}

static int differ_seconds(struct err *e, const char *option, int64_t ours, int64_t theirs)
{
    char a[32], b[32];
    return seconds_differ(ours, theirs, a, b) ? differ(e, option, a, b) : 0;
}

/* Compare join_timeout. If it is not given, it is the time that workers may take to stop, plus a minute, which the
 * message explains. */
static int differ_join_timeout(struct err *e, int64_t ours, int64_t theirs)
{
    char a[32], b[32];
    if (!seconds_differ(ours, theirs, a, b))
        return 0;
    return err_set(e, ERR_REFUSED,
                   "the job was started with a join_timeout of %s s, not %s (--rdzv-conf join_timeout; where that is "
                   "not given it follows --shutdown-timeout, --resize-timeout, --drain-timeout and --kill-timeout)",
                   a, b);
}

/* No option sets it. */
static int differ_fixed(struct err *e, const char *what, int64_t ours, int64_t theirs)
{
    char a[32], b[32];
    if (!seconds_differ(ours, theirs, a, b))
        return 0;
    return err_set(e, ERR_REFUSED, "the job was started by another version of crun, with %s of %s s, not %s", what, a,
                   b);
}

static int differ_nnodes(struct err *e, const struct rdzv_config *ours, const struct rdzv_config *theirs)
{
    char a[32], b[32];
    if (ours->min_nodes == theirs->min_nodes && ours->max_nodes == theirs->max_nodes)
        return 0;
    snprintf(a, sizeof a, "%d:%d", ours->min_nodes, ours->max_nodes);
    snprintf(b, sizeof b, "%d:%d", theirs->min_nodes, theirs->max_nodes);
    return differ(e, "--nnodes", a, b);
}

int rdzv_config_differs(const struct rdzv_config *ours, const struct rdzv_config *theirs, struct err *e)
{
    TRY(differ_nnodes(e, ours, theirs));
    TRY(differ_number(e, "--max-restarts", ours->max_restarts, theirs->max_restarts));
    TRY(differ_number(e, "--max-node-failures", ours->max_node_failures, theirs->max_node_failures));
    if (ours->order != theirs->order)
        return differ(e, "--rank-order", order_word((int)ours->order), order_word((int)theirs->order));
#define SECONDS(option, member) TRY(differ_seconds(e, option, ours->member, theirs->member))
#define FIXED(what, member) TRY(differ_fixed(e, what, ours->member, theirs->member))
    SECONDS("--restart-window", restart_window_ms);
    SECONDS("--restart-backoff", backoff_ms);
    FIXED("a longest back-off", backoff_max_ms);
    FIXED("a quick failure's bound", backoff_reset_ms);
    TRY(differ_join_timeout(e, ours->join_timeout_ms, theirs->join_timeout_ms));
    SECONDS("--rdzv-conf last_call_timeout", last_call_ms);
    SECONDS("--rdzv-conf keep_alive_interval x keep_alive_max_attempt", silence_ms);
    FIXED("a kill's bound", kill_ms);
#undef FIXED
#undef SECONDS
    return 0;
}

const char *rdzv_refusal(const char *answer)
{
    const size_t word = strspn(answer, "ABCDEFGHIJKLMNOPQRSTUVWXYZ");
    return word > 1 && answer[word] == ' ' && answer[word + 1] ? answer + word + 1 : answer;
}
