/* The machine as lines of a log, and back: "machine ..." all but nodes, "gone id=..." a node that was forgotten, "node
 * id=..." the whole of one, "restart age=..." one that counts against a window (all of them, the first with first=1).
 * Times are written as durations from or to the moment of writing. */
#include <errno.h>
#include <string.h>
#include <utlist.h>

#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/rdzv/machine/rdzv_impl.h"
#include "common/rdzv/wire/rdzv_record.h"
#include "common/rdzv/wire/rdzv_wire.h"

#define COUNT(v) (sizeof(v) / sizeof *(v))
#define MS_MAX (INT64_C(1) << 42)
#define COUNT_MAX 1000000000

static const char *state_word(int v)
{
    return rdzv_state_name((enum rdzv_state)v);
}

static const char *why_word(int v)
{
    return rdzv_reason_name((enum rdzv_reason)v);
}

static const struct rdzv_field machine_fields[] = {
#define NUMBER(key, member, ...) RDZV_NUMBER(RDZV_ALL, struct core, key, member, __VA_ARGS__)
    RDZV_NAME(RDZV_ALL, struct core, "state", state, 0, STATE_COUNT - 1, -1, state_word),
    RDZV_NAME(RDZV_ALL, struct core, "why", why, 0, RDZV_WHY_DRAIN, 0, why_word),
    NUMBER("begun", begun, 0, 1, 0),
    NUMBER("restarts", restarts, 0, COUNT_MAX, 0),
    NUMBER("group_world", group_world, 0, RDZV_NODES_MAX, 0),
    NUMBER("world_size", world_size, 0, RDZV_NODES_MAX *RDZV_SLOTS_MAX, 0),
    NUMBER("done", done_count, 0, RDZV_NODES_MAX, 0),
    NUMBER("departed_done", departed_done, 0, RDZV_NODES_MAX, 0),
    NUMBER("row", row, 0, COUNT_MAX, 0),
    NUMBER("deadline", deadline, 0, MS_MAX, -1),       /* in ms; never */
    NUMBER("round_age", round_started, 0, MS_MAX, -1), /* ms ago; there was none */
    NUMBER("backoff", not_before, 0, MS_MAX, 0),       /* in ms */
    NUMBER("last_call", last_call, 0, MS_MAX, 0),      /* in ms */
    NUMBER("round", round, 0, INT64_MAX, 0),
    NUMBER("round_floor", round_floor, 0, INT64_MAX, 0),
    NUMBER("seq_floor", seq_floor, 0, INT64_MAX, 0),
#undef NUMBER
};

static const struct rdzv_field node_fields[] = {
#define TEXT(key, member) RDZV_TEXT(RDZV_ALL, struct node, key, member)
#define NUMBER(key, member, ...) RDZV_NUMBER(RDZV_ALL, struct node, key, member, __VA_ARGS__)
    TEXT("id", id),
    NUMBER("seq", seq, 0, INT64_MAX, 0),
    NUMBER("joined", is.joined, 0, 1, 0),
    NUMBER("member", is.member, 0, 1, 0),
    NUMBER("done", is.done, 0, 1, 0),
    NUMBER("leaving", is.leaving, 0, 1, 0),
    NUMBER("silent", is.silent, 0, 1, 0),
    NUMBER("fence", fence, 0, MS_MAX, 0), /* in ms, silent */
    NUMBER("group_rank", group_rank, -1, RDZV_NODES_MAX, -1),
    NUMBER("rank_base", rank_base, -1, RDZV_NODES_MAX *RDZV_SLOTS_MAX, -1),
    NUMBER("slots", slots, 1, RDZV_SLOTS_MAX, 0),
    NUMBER("failures", failures, 0, COUNT_MAX, 0),
    NUMBER("waits", is.waits, 0, 1, 0),
    NUMBER("node_rank", node_rank, INT_MIN, INT_MAX, -1),
    TEXT("addr", addr),
    TEXT("addrs", addrs),
    NUMBER("port", port, 0, 65535, 0),
    TEXT("role", role),
#undef TEXT
#undef NUMBER
};

/* --- writing */

static int64_t until(int64_t at, int64_t now)
{
    return at > now ? at - now : 0;
}

static int write_line(struct buf *out, const char *kind, const struct rdzv_field *fields, size_t count,
                      const void *base)
{
    TRY(buf_addstr(out, kind));
    TRY(rdzv_record_write(out, fields, count, RDZV_ALL, base));
    return buf_add(out, "\n", 1);
}

static int write_machine(const struct rdzv *r, int64_t now, struct buf *out)
{
    struct core m = r->m;
    m.deadline = m.deadline == INT64_MAX ? -1 : until(m.deadline, now);
    m.round_started = m.round == 0 ? -1 : until(now, m.round_started);
    m.not_before = until(m.not_before, now);
    m.last_call = m.state == RDZV_LAST_CALL ? until(m.last_call, now) : 0;
    return write_line(out, "machine", machine_fields, COUNT(machine_fields), &m);
}

static int write_node(const struct node *n, int64_t now, struct buf *out)
{
    struct node copy = *n;
    copy.fence = n->is.silent ? until(n->fence, now) : 0;
    return write_line(out, "node", node_fields, COUNT(node_fields), &copy);
}

/* Write the times of all restarts that still count: a successor must know how far apart they were. */
static int write_restarts(const struct rdzv *r, int64_t now, struct buf *out)
{
    size_t first = rdzv_expired_restarts_(r, now);
    for (size_t i = first; i < r->restart_n; i++) {
        TRY(buf_addstr(out, "restart"));
        TRY(rdzv_field_int(out, "age", until(now, r->restart_times[i])));
        if (i == first)
            TRY(rdzv_field_int(out, "first", 1));
        TRY(buf_add(out, "\n", 1));
    }
    return 0;
}

static int write_all(const struct rdzv *r, int64_t now, struct buf *out)
{
    TRY(write_machine(r, now, out));
    for (const struct node *n = r->nodes; n; n = n->hh.next)
        TRY(write_node(n, now, out));
    return write_restarts(r, now, out);
}

static int write_changes(const struct rdzv *r, int64_t now, struct buf *out)
{
    if (memcmp(&r->m, &r->logged, sizeof r->m) != 0)
        TRY(write_machine(r, now, out));
    for (const struct node *n = r->gone; n; n = n->next) {
        TRY(buf_addstr(out, "gone"));
        TRY(rdzv_field_text(out, "id", n->id));
        TRY(buf_add(out, "\n", 1));
    }
    for (const struct node *n = r->changed; n; n = n->next)
        TRY(write_node(n, now, out));
    return r->restart_new ? write_restarts(r, now, out) : 0;
}

static int whole_or_nothing(int rc, struct buf *out, size_t before, struct err *e)
{
    if (rc == 0)
        return 0;
    if (out->data && out->len > before) {
        out->len = before;
        out->data[before] = 0;
    }
    return err_set(e, rc, "no memory to write the state of the rendezvous");
}

/* Mark everything as logged. */
static void set_logged(struct rdzv *r)
{
    for (struct node *n = r->changed, *next; n; n = next) {
        next = n->next;
        n->changed = false;
    }
    r->changed = NULL;
    rdzv_free_gone_(r);
    r->restart_new = false;
    r->logged = r->m;
    r->logging = true;
}

int rdzv_delta(struct rdzv *r, int64_t now_ms, struct buf *out, struct err *e)
{
    size_t before = out->len;
    TRY(whole_or_nothing(r->logging ? write_changes(r, now_ms, out) : write_all(r, now_ms, out), out, before, e));
    set_logged(r);
    return 0;
}

int rdzv_snapshot(const struct rdzv *r, int64_t now_ms, struct buf *out, struct err *e)
{
    size_t before = out->len;
    return whole_or_nothing(write_all(r, now_ms, out), out, before, e);
}

/* --- reading */

struct line {
    const char *p; /* the fields */
    size_t n;
    int64_t now;
};

static int read_machine(struct rdzv *r, const struct line *l, struct err *e)
{
    struct core m;
    memset(&m, 0, sizeof m);
    TRY(rdzv_record_read(l->p, l->n, machine_fields, COUNT(machine_fields), &m, e));
    if ((int)m.state < 0)
        return err_set(e, -EINVAL, "there is no state=");
    m.deadline = m.deadline < 0 ? INT64_MAX : l->now + m.deadline;
    m.round_started = m.round_started < 0 ? 0 : l->now - m.round_started;
    m.not_before = l->now + m.not_before;
    m.last_call = l->now + m.last_call;
    r->m = m;
    return 0;
}

static int read_node(struct rdzv *r, const struct line *l, struct err *e)
{
    struct node from, *n;
    memset(&from, 0, sizeof from);
    TRY(rdzv_record_read(l->p, l->n, node_fields, COUNT(node_fields), &from, e));
    if (!from.id[0])
        return err_set(e, -EINVAL, "there is no id=");
    n = rdzv_find_(r, from.id);
    if (!n)
        TRY(rdzv_add_node_(r, from.id, &n, e));
    struct standing silent_no_more = n->is;
    silent_no_more.silent = false;
    rdzv_stand_(r, n, silent_no_more); /* take it out of the order of fences before its fields change */
    memcpy(n->addr, from.addr, sizeof n->addr);
    memcpy(n->addrs, from.addrs, sizeof n->addrs);
    memcpy(n->role, from.role, sizeof n->role);
    n->slots = from.slots;
    n->failures = from.failures;
    n->node_rank = from.node_rank;
    n->port = from.port;
    n->seq = from.seq;
    n->group_rank = from.group_rank;
    n->rank_base = from.rank_base;
    n->fence = l->now + from.fence;
    rdzv_stand_(r, n, from.is);
    if (r->leader == n)
        r->leader = NULL;
    if (n->is.member && n->group_rank == 0)
        r->leader = n;
    return 0;
}

static int read_gone(struct rdzv *r, const struct line *l, struct err *e)
{
    char id[RDZV_ID_MAX + 1];
    if (rdzv_field_find(l->p, l->n, "id", id, sizeof id) != 1)
        return err_set(e, -EINVAL, "there is no id= of at most %d bytes", RDZV_ID_MAX);
    struct node *n = rdzv_find_(r, id);
    struct core m = r->m; /* the machine's own line already contains what was lost with the node */
    if (n)
        rdzv_forget_(r, n);
    r->m = m;
    return 0;
}

static int read_restart(struct rdzv *r, const struct line *l, struct err *e)
{
    char text[24];
    long long age;
    if (rdzv_field_find(l->p, l->n, "age", text, sizeof text) != 1 || rdzv_record_number(text, &age) < 0 || age < 0 ||
        age > MS_MAX)
        return err_set(e, -EINVAL, "there is no age= of 0 to %lld", (long long)MS_MAX);
    if (rdzv_field_find(l->p, l->n, "first", text, sizeof text) == 1)
        r->restart_n = 0;
    if (rdzv_reserve_restart_(r) < 0)
        return err_set(e, -ENOMEM, "no memory for the times of restarts");
    r->restart_times[r->restart_n++] = l->now - age;
    return 0;
}

static int read_line(struct rdzv *r, const char *p, size_t n, int64_t now, struct err *e)
{
    static const struct {
        const char *kind;
        int (*read)(struct rdzv *r, const struct line *l, struct err *e);
    } kinds[] = {{"machine ", read_machine}, {"node ", read_node}, {"gone ", read_gone}, {"restart ", read_restart}};
    for (size_t i = 0; i < COUNT(kinds); i++) {
        size_t len = strlen(kinds[i].kind);
        if (n > len && memcmp(p, kinds[i].kind, len) == 0)
            return kinds[i].read(r, &(struct line){.p = p + len, .n = n - len, .now = now}, e);
    }
    return err_set(e, -EINVAL, "it begins with no word of this log");
}

int rdzv_replay(struct rdzv *r, const char *text, size_t n, int64_t now_ms, struct err *e)
{
    size_t number = 0;
    for (size_t at = 0; at < n; number++) {
        const char *end = memchr(text + at, '\n', n - at);
        if (!end)
            return err_set(e, ERR_CORRUPT, "line %zu has no end", number + 1);
        size_t len = (size_t)(end - (text + at));
        int rc = read_line(r, text + at, len, now_ms, e);
        if (rc == -ENOMEM)
            return rc;
        if (rc < 0) {
            err_wrap(e, "line %zu '%.*s'", number + 1, (int)(len < 60 ? len : 60), text + at);
            if (e)
                e->code = ERR_CORRUPT;
            return ERR_CORRUPT;
        }
        at += len + 1;
    }
    set_logged(r);
    int rc = rdzv_check(r, e);
    return rc < 0 ? err_wrap(e, "after line %zu", number), ERR_CORRUPT : 0;
}
