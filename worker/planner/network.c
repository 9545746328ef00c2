/* Fits and evaluates alpha-beta models of links. */
#include "worker/planner/network.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "worker/comm/comm.h"
#include "worker/parallel/layout.h"

#define EXCHANGE_BYTES (256 * 1024)    /* all-reduces of as much are one trip: comm/gloo/gloo.cc */
#define SOCKET_BYTES (2 * 1024 * 1024) /* what a socket takes at once; who waits for sockets sends the rest */

struct network_span network_span(const struct network *n, const struct layout_ranks *g)
{
    struct network_span s = {.ranks = g->count, .flows = 1};
    int last = -1;
    for (int i = 0; i < g->count; i++) {
        const int node = layout_group_rank(g, i) / n->local;
        s.nodes += node != last;
        last = node;
    }
    if (s.nodes > 1 && g->count > 1)
        s.flows = g->stride < n->local ? g->stride : n->local;
    return s;
}

/* What one rank sends, and in how many trips. */
struct route {
    double trips, sent;
};

static struct route route_of(enum network_call c, int n, double bytes, bool halving)
{
    const double once = bytes * (n - 1) / n;
    switch (c) {
    case NETWORK_ALL_REDUCE:
        if (bytes * (n - 1) <= EXCHANGE_BYTES)
            return (struct route){1, bytes * (n - 1)};
        return (struct route){halving ? 2 * ceil(log2(n)) : 2.0 * (n - 1), 2 * once};
    case NETWORK_SCATTER:
        return (struct route){1, once};
    case NETWORK_GATHER:
        return (struct route){n - 1, once};
    case NETWORK_HAND_OVER:
        return (struct route){1, bytes < SOCKET_BYTES ? bytes : SOCKET_BYTES};
    default:
        return (struct route){1, bytes};
    }
}

/* Over the links between nodes, or those inside of one. */
static struct network_cost on_link(const struct network *n, bool between, enum network_call c, struct network_span s,
                                   double bytes)
{
    const struct network_link *l = between ? n->between : n->inside;
    const struct route r = route_of(c, s.ranks, bytes, n->halving);
    return (struct network_cost){r.trips * l[c].alpha + r.sent * l[c].beta * s.flows, l[c].cores};
}

bool network_is_hierarchical(const struct network *n, struct network_span s, double bytes)
{
    return n->hierarchical && s.nodes > 1 && s.ranks > s.nodes && bytes >= COMM_HIERARCHY_BYTES;
}

/* Scatter and gather inside of each node, and between the nodes a ring for each place in them. */
static struct network_cost by_nodes(const struct network *n, struct network_span s, double bytes)
{
    const int local = s.ranks / s.nodes;
    const struct network_span node = {local, 1, 1}, across = {s.nodes, s.nodes, local * s.flows};
    const struct network_cost a = on_link(n, false, NETWORK_SCATTER, node, bytes),
                              b = on_link(n, true, NETWORK_ALL_REDUCE, across, bytes / local),
                              c = on_link(n, false, NETWORK_GATHER, node, bytes);
    const double seconds = a.seconds + b.seconds + c.seconds;
    return (struct network_cost){
        seconds, seconds > 0 ? (a.seconds * a.cores + b.seconds * b.cores + c.seconds * c.cores) / seconds : 0};
}

struct network_cost network_cost(const struct network *n, enum network_call c, struct network_span s, double bytes)
{
    if (s.ranks < 2)
        return (struct network_cost){0, 0};
    if (c == NETWORK_ALL_REDUCE && network_is_hierarchical(n, s, bytes))
        return by_nodes(n, s, bytes);
    return on_link(n, s.nodes > 1, c, s, bytes);
}

/* Least squares of (a x + b y - 1), x = trips / seconds, y = sent / seconds; neither below 0. */
struct network_link network_fit(enum network_call c, const double *bytes, const double *seconds, int n, double cores)
{
    double xx = 0, xy = 0, yy = 0, sx = 0, sy = 0;
    for (int i = 0; i < n; i++) {
        const struct route r = route_of(c, 2, bytes[i], false);
        const double x = r.trips / seconds[i], y = r.sent / seconds[i];
        xx += x * x, xy += x * y, yy += y * y, sx += x, sy += y;
    }
    const double det = xx * yy - xy * xy;
    struct network_link l = {.cores = cores};
    if (det > 0) {
        l.alpha = (sx * yy - sy * xy) / det;
        l.beta = (sy * xx - sx * xy) / det;
    }
    if (l.alpha <= 0 || det <= 0) {
        l.alpha = 0;
        l.beta = yy > 0 ? sy / yy : 0;
    } else if (l.beta < 0) {
        l.beta = 0;
        l.alpha = sx / xx;
    }
    return l;
}

static int wrong(const char *text, struct err *e)
{
    return err_set(e, ERR_USAGE, "'%s' is not TIME,GIGABIT (such as 50us,10)", text);
}

int network_parse(const char *text, struct network_link ret[NETWORK_CALLS], struct err *e)
{
    static const struct {
        const char *unit;
        double seconds;
    } units[] = {{"us", 1e-6}, {"ms", 1e-3}, {"s", 1}};
    char *end;
    const double time = strtod(text, &end);
    double scale = 0;
    for (size_t i = 0; i < sizeof units / sizeof *units && scale == 0 && end > text; i++) {
        const size_t n = strlen(units[i].unit);
        if (strncmp(end, units[i].unit, n) == 0 && end[n] == ',') {
            scale = units[i].seconds;
            end += n + 1;
        }
    }
    char *last = end;
    const double gigabit = scale > 0 ? strtod(end, &last) : 0;
    if (last == end || *last || !isfinite(time) || time < 0 || !isfinite(gigabit) || gigabit <= 0)
        return wrong(text, e);
    for (int c = 0; c < NETWORK_CALLS; c++)
        ret[c] = c == NETWORK_HAND_OVER || c == NETWORK_ASK
                     ? (struct network_link){0}
                     : (struct network_link){.alpha = time * scale, .beta = 8 / (gigabit * 1e9)};
    return 0;
}
