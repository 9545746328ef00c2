/* Describes which nodes a waiting job has, and which it misses (presence.h). */
#include "common/rdzv/leader/presence.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/rdzv/wire/rdzv_wire.h"

struct look {
    struct presence *p;
    bool numbered;
    bool *there; /* by node rank, min_nodes entries: is that node here? NULL: no memory */
    bool here_full, silent_full;
};

/* Append a node's host name: "a,b", or "a,b,..." if there is no room. A node id is the host's name, '+', and what
 * makes it unique there. */
static void add_name(char *list, size_t cap, const char *node, bool *full)
{
    const size_t n = strlen(list), room = cap - n - sizeof ",...", len = strcspn(node, "+");
    if (*full)
        return;
    *full = len + 1 > room;
    snprintf(list + n, cap - n, "%s%.*s", n ? "," : "", *full ? 3 : (int)len, *full ? "..." : node);
}

static int look_at(void *arg, const struct rdzv_member *m)
{
    struct look *l = arg;
    struct presence *p = l->p;
    const bool here = m->ready && !m->silent;
    p->joined += here;
    if (here)
        add_name(p->here, sizeof p->here, m->node, &l->here_full);
    if (m->silent)
        add_name(p->silent, sizeof p->silent, m->node, &l->silent_full);
    l->numbered = l->numbered || m->node_rank >= 0;
    if (l->there && m->node_rank >= 0 && m->node_rank < p->min_nodes && !m->silent)
        l->there[m->node_rank] = true;
    return 0;
}

static void name_missing(struct look *l)
{
    size_t n = 0;
    for (int i = 0; l->numbered && l->there && i < l->p->min_nodes; i++) {
        if (l->there[i])
            continue;
        if (n + 16 > sizeof l->p->missing)
            return;
        n += (size_t)snprintf(l->p->missing + n, 16, "%s%d", n ? "," : "", i);
    }
}

void presence_look(struct rdzv *machine, const struct rdzv_config *c, int64_t now_ms, struct presence *ret)
{
    int64_t since, until;
    *ret = (struct presence){.state = rdzv_state(machine),
                             .min_nodes = c->min_nodes,
                             .max_nodes = c->max_nodes,
                             .restarts = rdzv_restarts(machine),
                             .round = rdzv_round(machine),
                             .waiting_ms = -1,
                             .left_ms = -1};
    struct look l = {.p = ret, .there = calloc((size_t)ret->min_nodes, sizeof(bool))};
    rdzv_members(machine, look_at, &l);
    name_missing(&l);
    free(l.there);
    if (rdzv_begins(machine, &until))
        ret->left_ms = until > now_ms ? until - now_ms : 0;
    if (!rdzv_waits(machine, &since, &until))
        return;
    ret->waiting_ms = now_ms > since ? now_ms - since : 0;
    ret->left_ms = until > now_ms ? until - now_ms : 0;
}

/* --- as a record */

int presence_record(const struct presence *p, struct buf *out)
{
    TRY(rdzv_field_text(out, "state", rdzv_state_name(p->state)));
    TRY(rdzv_field_int(out, "joined", p->joined));
    TRY(rdzv_field_int(out, "min_nodes", p->min_nodes));
    TRY(rdzv_field_int(out, "max_nodes", p->max_nodes));
    TRY(rdzv_field_int(out, "round", (long long)p->round));
    TRY(rdzv_field_int(out, "restarts", p->restarts));
    TRY(rdzv_field_text(out, "missing", p->missing));
    TRY(rdzv_field_text(out, "silent", p->silent));
    TRY(rdzv_field_text(out, "here", p->here));
    if (p->beside[0])
        TRY(rdzv_field_text(out, "beside", p->beside));
    TRY(rdzv_field_int(out, "waiting_ms", p->waiting_ms));
    return rdzv_field_int(out, "left_ms", p->left_ms);
}

void presence_read(const char *record, size_t n, struct presence *ret)
{
    char state[32] = "";
    *ret = (struct presence){.joined = (int)rdzv_field_number(record, n, "joined", 0),
                             .min_nodes = (int)rdzv_field_number(record, n, "min_nodes", 0),
                             .max_nodes = (int)rdzv_field_number(record, n, "max_nodes", 0),
                             .restarts = (int)rdzv_field_number(record, n, "restarts", 0),
                             .round = (uint64_t)rdzv_field_number(record, n, "round", 0),
                             .waiting_ms = rdzv_field_number(record, n, "waiting_ms", -1),
                             .left_ms = rdzv_field_number(record, n, "left_ms", -1)};
    rdzv_field_find(record, n, "missing", ret->missing, sizeof ret->missing);
    rdzv_field_find(record, n, "silent", ret->silent, sizeof ret->silent);
    rdzv_field_find(record, n, "here", ret->here, sizeof ret->here);
    rdzv_field_find(record, n, "beside", ret->beside, sizeof ret->beside);
    rdzv_field_find(record, n, "state", state, sizeof state);
    for (int i = RDZV_JOINING; i <= RDZV_DRAINED; i++)
        if (strcmp(rdzv_state_name((enum rdzv_state)i), state) == 0)
            ret->state = (enum rdzv_state)i;
}

/* --- for people */

char *presence_text(const struct presence *p, char *out, size_t cap)
{
    size_t n = (size_t)snprintf(out, cap, "%d of %d nodes", p->joined, p->min_nodes);
    if (p->missing[0] && n < cap)
        n += (size_t)snprintf(out + n, cap - n, ", missing node ranks %s", p->missing);
    if (p->silent[0] && n < cap)
        n += (size_t)snprintf(out + n, cap - n, "; nothing is heard of %s", p->silent);
    if (p->here[0] && n < cap)
        n += (size_t)snprintf(out + n, cap - n, "; here: %s", p->here);
    if (p->waiting_ms >= 0 && n < cap)
        snprintf(out + n, cap - n, "; for %lld s, given up in %lld s", (long long)p->waiting_ms / 1000,
                 ((long long)p->left_ms + 999) / 1000);
    return out;
}
