/* Links between ranks, as calls and messages of a run use them. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "worker/comm/comm.h"
#include "worker/planner/measure_impl.h"

static const double sizes[] = {4096, 65536, 1 << 20, 4 << 20, 16 << 20};
static const int turns[] = {25, 25, 15, 9, 5}; /* what takes little is measured often: it is easily disturbed */
enum { SIZES = sizeof sizes / sizeof *sizes, TURNS_MAX = 25, BUFFER = 16 << 20 };

/* The second: others on the machine make a call slower, nobody makes it faster. */
static double almost_least(double *v, int n)
{
    (void)measure_middle(v, n);
    return v[1];
}

/* As a run does it: scattered and gathered in place (parallel/ddp_reduce.c). */
static int transfer(struct comm *c, enum network_call call, char *a, size_t bytes, struct err *e)
{
    const size_t n = bytes / sizeof(float), half = bytes / 2, own = (size_t)c->rank * half;
    switch (call) {
    case NETWORK_ALL_REDUCE:
        return c->ops->all_reduce(c, COMM_GRADIENTS, a, n, DT_F32, COMM_SUM, NULL, e);
    case NETWORK_SCATTER:
        return c->ops->reduce_scatter(c, COMM_GRADIENTS, a, a + own, n / 2, DT_F32, COMM_SUM, NULL, e);
    default:
        return c->ops->all_gather(c, COMM_GRADIENTS, a + own, a, half, NULL, e);
    }
}

static int time_calls(struct comm *c, enum network_call call, char *a, struct network_link *ret, struct err *e)
{
    double seconds[SIZES], cores = 0;
    for (int i = 0; i < SIZES; i++) {
        double v[TURNS_MAX], least = 0;
        TRY(c->ops->barrier(c, COMM_CONTROL, e));
        for (int k = -1; k < turns[i]; k++) {
            const double used = measure_process_seconds();
            const int64_t start = clock_ns();
            TRY(transfer(c, call, a, (size_t)sizes[i], e));
            const double took = (double)(clock_ns() - start) * 1e-9;
            if (k < 0)
                continue;
            v[k] = took;
            cores = least == 0 || took < least ? (measure_process_seconds() - used) / took : cores;
            least = least == 0 || took < least ? took : least;
        }
        seconds[i] = almost_least(v, turns[i]);
    }
    *ret = network_fit(call, sizes, seconds, SIZES, cores);
    return 0;
}

/* --- messages, as stages exchange them: asked for before they are sent, and with work between (parallel/stage.c), for
 * which a processor is awake and whoever waits has gone to sleep */

enum { WORK_US = 300, WORK_BYTES = 256 * 1024 };

struct exchange {
    struct comm *c;
    char *a, *b;
    size_t bytes;
    double took[TURNS_MAX], handed[TURNS_MAX], asked[TURNS_MAX], beside[TURNS_MAX];
};

static int await(struct comm_request **r, struct err *e)
{
    struct comm_request *const q = *r;
    *r = NULL;
    return comm_wait(q, e);
}

/* What a pass is to a message: time, and other memory in the caches. */
static void work(char *with)
{
    const int64_t until = clock_ns() + WORK_US * 1000LL;
    do
        memset(with, 1, WORK_BYTES);
    while (clock_ns() < until);
}

static int hand_over(struct exchange *x, int k, struct comm_request **out, struct err *e)
{
    struct comm *c = x->c;
    const double start = measure_own_seconds();
    TRY(c->ops->isend(c, COMM_GRADIENTS, x->a, x->bytes, 1 - c->rank, NULL, out, e));
    x->handed[k] = measure_own_seconds() - start;
    return 0;
}

/* There and back, which is two. */
static int turn(struct exchange *x, int k, struct err *e)
{
    struct comm *c = x->c;
    struct comm_request *in = NULL, *out = NULL;
    const double before = measure_own_seconds();
    TRY(c->ops->irecv(c, COMM_GRADIENTS, x->b, x->bytes, 1 - c->rank, NULL, &in, e));
    const double own = measure_own_seconds(), all = measure_process_seconds();
    const int64_t start = clock_ns();
    int rc = c->rank == 1 ? await(&in, e) : 0;
    work(x->a);
    rc = rc == 0 ? hand_over(x, k, &out, e) : rc;
    rc = rc == 0 && c->rank == 0 ? await(&in, e) : rc;
    x->took[k] = ((double)(clock_ns() - start) * 1e-9 - 2e-6 * WORK_US) / 2;
    rc = comm_wait_all((struct comm_request *[]){in, out}, 2, rc, e);
    x->asked[k] = own - before;
    x->beside[k] = measure_process_seconds() - all - (measure_own_seconds() - own);
    return rc;
}

/* Of processor times the middle: a busy machine does not blur them. */
static int time_messages(struct comm *c, char *a, char *b, struct network_link links[NETWORK_CALLS], struct err *e)
{
    double there[SIZES], handed[SIZES], asked = 0, cores = 0;
    struct exchange x = {.c = c, .a = a, .b = b};
    for (int i = 0; i < SIZES; i++) {
        x.bytes = (size_t)sizes[i];
        TRY(c->ops->barrier(c, COMM_CONTROL, e));
        TRY(turn(&x, 0, e)); /* the first one finds the memory */
        for (int k = 0; k < turns[i]; k++)
            TRY(turn(&x, k, e));
        there[i] = almost_least(x.took, turns[i]);
        handed[i] = measure_middle(x.handed, turns[i]);
        asked = i == 0 ? measure_middle(x.asked, turns[i]) : asked;
        cores += measure_middle(x.beside, turns[i]) / 2 / there[i] / SIZES;
    }
    links[NETWORK_MESSAGE] = network_fit(NETWORK_MESSAGE, sizes, there, SIZES, cores);
    links[NETWORK_HAND_OVER] = network_fit(NETWORK_HAND_OVER, sizes, handed, SIZES, 1);
    links[NETWORK_ASK] = (struct network_link){.alpha = asked, .cores = 1};
    return 0;
}

static int time_link(struct comm *c, struct network_link links[NETWORK_CALLS], struct err *e)
{
    char *a = calloc(1, BUFFER), *b = calloc(1, BUFFER);
    int rc = a && b ? 0 : err_errno(e, ENOMEM, "two buffers of %d MiB", BUFFER >> 20);
    for (int call = NETWORK_ALL_REDUCE; call <= NETWORK_GATHER && rc == 0; call++)
        rc = time_calls(c, (enum network_call)call, a, &links[call], e);
    rc = rc == 0 ? time_messages(c, a, b, links, e) : rc;
    free(a);
    free(b);
    return rc;
}

/* Ranks 0 and `other` measure their link; the others wait. */
static int measure_pair(struct measure *m, const struct comm_options *o, int other, const char *name,
                        struct network_link links[NETWORK_CALLS], struct err *e)
{
    const int ranks[] = {0, other};
    struct comm_options mine = *o;
    struct comm *c;
    int rc = 0;
    mine.name = name;
    if (m->comm->rank == 0 || m->comm->rank == other) {
        TRY(comm_group(&c, m->comm, &mine, ranks, 2, e));
        rc = time_link(c, links, e);
        c->ops->close(c);
    }
    return rc < 0 ? rc : measure_meet(m, e);
}

int measure_network(struct measure *m, const struct comm_options *o, struct network *n, struct err *e)
{
    int near = -1, far = -1;
    for (int r = 1; m->comm && r < m->comm->world; r++) {
        near = near < 0 && m->nodes[r] == m->nodes[0] ? r : near;
        far = far < 0 && m->nodes[r] != m->nodes[0] ? r : far;
    }
    if (near > 0) {
        TRY(measure_pair(m, o, near, "plan inside", n->inside, e));
        n->known[0] = true;
    }
    if (far > 0 && !n->known[1]) {
        TRY(measure_pair(m, o, far, "plan between", n->between, e));
        n->known[1] = true;
    }
    return 0;
}
