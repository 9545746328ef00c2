/* SPDX-License-Identifier: Apache-2.0 */
/* Message passing between the ranks of a job over libcrun's store: send and receive, and what is made of them:
 * broadcast, scatter, gather, all-gather, reduce and all-reduce (sum, product, maximum, minimum), in the whole world or
 * in a group. The store is for small values: coordination, a few numbers a step. Tensors go over Gloo or NCCL
 * (trainer comm-bench).
 *
 *     cc -o messages messages.c $(pkg-config --cflags --libs crun)
 *     crun --nproc_per_node 4 ./messages
 */
#include <crun.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS_MAX = 64, WAIT_S = 60 };

struct group {
    const char *name; /* of its keys */
    int rank, world;
    long sent[RANKS_MAX], received[RANKS_MAX]; /* messages so far: they arrive in order */
};

static void must(int rc, const char *what)
{
    char text[100];
    if (rc >= 0)
        return;
    snprintf(text, sizeof text, "%s: %s", what, strerror(-rc));
    crun_record_error(1, text); /* the launcher's report shows it */
    fprintf(stderr, "messages: %s\n", text);
    exit(1);
}

/* Does not wait for the receiver: both may send first. */
static void send_to(struct group *g, int to, const double *v, int n)
{
    char key[100];
    snprintf(key, sizeof key, "%s/%d/%d/%ld", g->name, g->rank, to, g->sent[to]++);
    must(crun_set(key, v, (size_t)n * sizeof *v), "send");
}

static void receive_from(struct group *g, int from, double *v, int n)
{
    char key[100];
    size_t bytes = 0;
    snprintf(key, sizeof key, "%s/%d/%d/%ld", g->name, from, g->rank, g->received[from]++);
    must(crun_get(key, v, (size_t)n * sizeof *v, &bytes, WAIT_S), "receive");
    must(crun_delete(key), "receive");
}

static void broadcast(struct group *g, double *v, int n, int root)
{
    if (g->rank != root)
        receive_from(g, root, v, n);
    for (int r = 0; g->rank == root && r < g->world; r++)
        if (r != root)
            send_to(g, r, v, n);
}

/* all: of root, world * n. */
static void scatter(struct group *g, const double *all, double *part, int n, int root)
{
    if (g->rank != root) {
        receive_from(g, root, part, n);
        return;
    }
    for (int r = 0; r < g->world; r++)
        if (r != root)
            send_to(g, r, all + r * n, n);
    memcpy(part, all + root * n, (size_t)n * sizeof *part);
}

static void gather(struct group *g, const double *part, double *all, int n, int root)
{
    if (g->rank != root) {
        send_to(g, root, part, n);
        return;
    }
    for (int r = 0; r < g->world; r++)
        if (r != root)
            receive_from(g, r, all + r * n, n);
    memcpy(all + root * n, part, (size_t)n * sizeof *part);
}

static void all_gather(struct group *g, const double *part, double *all, int n)
{
    gather(g, part, all, n, 0);
    broadcast(g, all, g->world * n, 0);
}

enum op { SUM, PRODUCT, MAX, MIN };

static double combine(enum op op, double a, double b)
{
    return op == SUM ? a + b : op == PRODUCT ? a * b : op == MAX ? (a > b ? a : b) : (a < b ? a : b);
}

/* On root: of everybody's v. */
static double reduce(struct group *g, double v, enum op op, int root)
{
    double all[RANKS_MAX], result = 0;
    gather(g, &v, all, 1, root);
    for (int r = 0; g->rank == root && r < g->world; r++)
        result = r == 0 ? all[0] : combine(op, result, all[r]);
    return result;
}

static double all_reduce(struct group *g, double v, enum op op)
{
    double result = reduce(g, v, op, 0);
    broadcast(g, &result, 1, 0);
    return result;
}

int main(void)
{
    struct crun_info me;
    must(crun_init(&me), "crun_init");
    if (me.world_size > RANKS_MAX)
        must(-7, "more than 64 ranks"); /* E2BIG */
    struct group world = {.name = "world", .rank = me.rank, .world = me.world_size};
    const int last = world.world - 1;

    /* Both ends of the world send first, and nobody waits for ever. */
    double mine = me.rank + 1, theirs = mine;
    if (world.world > 1 && (me.rank == 0 || me.rank == last)) {
        send_to(&world, last - me.rank, &mine, 1);
        receive_from(&world, last - me.rank, &theirs, 1);
    }

    double from_last = me.rank, tens[RANKS_MAX], ten = 0, all[RANKS_MAX];
    broadcast(&world, &from_last, 1, last);
    for (int r = 0; r < world.world; r++)
        tens[r] = 10 * r;
    scatter(&world, tens, &ten, 1, 0);
    all_gather(&world, &mine, all, 1);
    const double sum = all_reduce(&world, mine, SUM), product = all_reduce(&world, mine, PRODUCT);
    const double most = all_reduce(&world, mine, MAX), least = all_reduce(&world, mine, MIN);

    /* Even and odd ranks, each for themselves. */
    struct group half = {.name = me.rank % 2 ? "odd" : "even", .rank = me.rank / 2};
    half.world = (world.world + 1 - me.rank % 2) / 2;
    const double of_half = all_reduce(&half, mine, SUM);

    must(crun_barrier("done", WAIT_S), "barrier");
    printf(
        "rank %d: exchanged %g, broadcast %g, scattered %g, gathered %g..%g, sum %g, product %g, max %g, min %g, %s %g\n",
        me.rank, theirs, from_last, ten, all[0], all[last], sum, product, most, least, half.name, of_half);
    crun_finish();
    return 0;
}
