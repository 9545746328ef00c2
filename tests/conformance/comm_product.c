/* Every call x type x operation x size x parts x root x channel x world of 1 to 9, in the whole world and in groups of
 * it side by side, on every backend, beside results that are known. Usage: comm_product [all]
 *
 * Without "all", points are drawn by a seed (COMM_SEED) until every pair of values of two dimensions has been seen. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/worker/comm/ranks.h"

enum { TIMEOUT_MS = 60000, WORLD_MAX = 9, CANDIDATES = 20 };

static const enum dtype types[] = {DT_F32, DT_F64, DT_BF16, DT_F16, DT_I64};
static const size_t sizes[] = {1, 3, 17, 1001, 131077};
static const char *const backends[] = {"local", "gloo"};
#define LEN(a) ((int)(sizeof(a) / sizeof((a)[0])))

/* Dimensions. The first two are those that a world is opened for. */
enum { BACKEND, WORLD, CALL, TYPE, OP, SIZE, PARTS, ROOT, CHANNEL, GROUPS, DIMENSIONS };
static const int values[DIMENSIONS] = {[BACKEND] = LEN(backends),
                                       [WORLD] = WORLD_MAX,
                                       [CALL] = KNOWN_CALL_COUNT,
                                       [TYPE] = LEN(types),
                                       [OP] = 4,
                                       [SIZE] = LEN(sizes),
                                       [PARTS] = 2,
                                       [ROOT] = 2,
                                       [CHANNEL] = COMM_CHANNELS,
                                       [GROUPS] = 2};
enum { VALUES_MAX = 9 }; /* of a dimension */
_Static_assert((int)WORLD_MAX <= (int)VALUES_MAX && (int)KNOWN_CALL_COUNT <= (int)VALUES_MAX, "dimensions fit");

struct point {
    int at[DIMENSIONS];
};

/* --- drawing */

static bool seen[DIMENSIONS][DIMENSIONS][VALUES_MAX][VALUES_MAX];

/* How many pairs of this point were not seen before; mark: they are now. */
static int new_pairs(const struct point *p, bool mark)
{
    int n = 0;
    for (int a = 0; a < DIMENSIONS; a++)
        for (int b = a + 1; b < DIMENSIONS; b++) {
            bool *s = &seen[a][b][p->at[a]][p->at[b]];
            n += !*s;
            *s = *s || mark;
        }
    return n;
}

static int all_pairs(void)
{
    int n = 0;
    for (int a = 0; a < DIMENSIONS; a++)
        for (int b = a + 1; b < DIMENSIONS; b++)
            n += values[a] * values[b];
    return n;
}

static int draw(struct point *points, int room, unsigned seed)
{
    int n = 0;
    for (int left = all_pairs(); left > 0 && n < room; n++) {
        int best = -1;
        for (int i = 0; i < CANDIDATES; i++) {
            struct point p;
            for (int d = 0; d < DIMENSIONS; d++)
                p.at[d] = (int)((unsigned)rand_r(&seed) / 7 % (unsigned)values[d]);
            const int fresh = new_pairs(&p, false);
            if (fresh > best) {
                best = fresh;
                points[n] = p;
            }
        }
        left -= new_pairs(&points[n], true);
    }
    return n;
}

/* Dimensions that make no difference to a call are not multiplied out. */
static bool is_needed(const struct point *p)
{
    const enum known_call call = (enum known_call)p->at[CALL];
    return (known_reduces(call) || p->at[OP] == 0) && (known_has_parts(call) || p->at[PARTS] == 0) &&
           (known_has_root(call) || p->at[ROOT] == 0) && p->at[CHANNEL] == p->at[SIZE] % COMM_CHANNELS;
}

static int multiply_out(struct point *points, int room)
{
    struct point p = {{0}};
    int n = 0;
    while (true) {
        if (is_needed(&p) && n < room)
            points[n++] = p;
        int d = DIMENSIONS - 1;
        while (d >= 0 && ++p.at[d] == values[d])
            p.at[d--] = 0;
        if (d < 0)
            return n;
    }
}

/* --- one world */

struct world {
    struct ranks w;
    struct comm *half[RANKS_MAX]; /* the group of each rank: the first half of the ranks, or the others */
    struct ranks_call call;
    const struct point *p;
};

static int open_half(struct comm *c, int rank, void *arg, struct err *e)
{
    struct world *x = arg;
    const int middle = (c->world + 1) / 2, first = rank < middle ? 0 : middle;
    const int n = rank < middle ? middle : c->world - middle;
    int ranks[RANKS_MAX];
    for (int i = 0; i < n; i++)
        ranks[i] = first + i;
    const struct comm_options o = {.name = "half", .timeout_ms = TIMEOUT_MS};
    return comm_group(&x->half[rank], c, &o, ranks, n, e);
}

static int run_one(struct comm *c, int rank, void *arg, struct err *e)
{
    struct world *x = arg;
    struct comm *to = x->p->at[GROUPS] ? x->half[rank] : c;
    struct ranks_call call = x->call;
    call.k.root = x->p->at[ROOT] ? to->world - 1 : 0;
    if (known_has_parts(call.k.call) && !call.k.uneven)
        call.k.n += (size_t)to->world - 1 - (call.k.n + (size_t)to->world - 1) % (size_t)to->world;
    return ranks_known(to, to->rank, &call, e);
}

static void report(const struct world *x)
{
    for (int r = 0; r < x->w.world; r++)
        if (x->w.rc[r] < 0)
            fprintf(stderr, "%s, world %d%s, rank %d: %s\n", backends[x->p->at[BACKEND]], x->w.world,
                    x->p->at[GROUPS] ? ", in groups" : "", r, x->w.err[r].text);
}

/* False: a rank failed, and the world is of no use any more. */
static bool run_point(struct world *x, const struct point *p)
{
    x->p = p;
    x->call = (struct ranks_call){.k = {.call = (enum known_call)p->at[CALL],
                                        .type = types[p->at[TYPE]],
                                        .op = (enum comm_op)p->at[OP],
                                        .n = sizes[p->at[SIZE]],
                                        .uneven = p->at[PARTS] == 1},
                                  .ch = (enum comm_channel)p->at[CHANNEL]};
    ranks_run(&x->w, run_one, x);
    for (int r = 0; r < x->w.world; r++)
        if (x->w.rc[r] < 0) {
            report(x);
            return false;
        }
    return true;
}

static bool run_world(int backend, int world, const struct point *points, int n, int *ret_run)
{
    struct world x = {0};
    bool ok = true;
    ranks_open(&x.w, backends[backend], world, TIMEOUT_MS);
    x.p = &(struct point){{backend, world - 1}};
    ranks_run(&x.w, open_half, &x);
    for (int r = 0; r < world; r++)
        ok = ok && x.w.rc[r] == 0;
    if (!ok)
        report(&x);
    for (int i = 0; ok && i < n; i++)
        if (points[i].at[BACKEND] == backend && points[i].at[WORLD] == world - 1) {
            ok = run_point(&x, &points[i]);
            ++*ret_run;
        }
    for (int r = 0; r < world; r++)
        if (x.half[r])
            x.half[r]->ops->close(x.half[r]);
    ranks_close(&x.w);
    return ok;
}

int main(int argc, char **argv)
{
    enum { ROOM = 1 << 18 };
    const char *seed = getenv("COMM_SEED");
    struct point *points = calloc(ROOM, sizeof *points);
    const bool all = argc > 1 && strcmp(argv[1], "all") == 0;
    const int n = all ? multiply_out(points, ROOM) : draw(points, ROOM, seed ? (unsigned)atoi(seed) : 1);
    int run = 0;
    bool ok = true;
    for (int b = 0; b < LEN(backends); b++)
        for (int world = 1; world <= WORLD_MAX && ranks_have(backends[b]); world++)
            ok = run_world(b, world, points, n, &run) && ok;
    free(points);
    printf("1..1\n%s 1 - %d points are right\n", ok ? "ok" : "not ok", run);
    return !ok;
}
