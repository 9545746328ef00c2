/* Operations over a group of ranks (threads), each by itself: values against their definition, and backward against
 * forward. All but the maximum are linear, y = A x over the values of all ranks, and the gradient is A^T dy: the
 * products <dy, y> and <dx, x>, summed over the ranks, are equal for any x and dy. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "worker/comm/comm.h"
#include "worker/device/device.h"
#include "worker/parallel/group_calls.h"
#include "worker/program/program.h"
#include "worker/program/split.h"

enum { RANKS = 3, BATCH = 2, CHANNELS = 7, FIRST = 2, TAKEN = 4, VALUES_MAX = RANKS * BATCH * CHANNELS };

struct rank {
    const char *device;
    enum op_kind kind;
    struct comm *comm;
    double x[VALUES_MAX], y[VALUES_MAX], dx[VALUES_MAX], dy[VALUES_MAX];
    size_t nx, ny;
};

static struct program *build(enum op_kind kind, int *ret_x, int *ret_y, struct err *e)
{
    struct program *p = program_create("op", input_pictures(3, 4, 4, NULL, NULL));
    const int x = program_tensor(p, "x", CHANNELS, 1, 1);
    program_set_group(p, RANKS);
    if (kind == OP_SCATTER)
        p->tensors[x].ranks = RANKS;
    *ret_y = kind == OP_SLICE    ? program_slice(p, "y", x, FIRST, TAKEN)
             : kind == OP_GATHER ? program_gather(p, "y", x)
             : kind == OP_SUM    ? program_sum(p, "y", x)
             : kind == OP_MAX    ? program_max(p, "y", x)
                                 : program_scatter(p, "y", x);
    *ret_x = x;
    (void)program_differentiate(p, e);
    return p;
}

static size_t values(const struct program *p, int t)
{
    return (size_t)BATCH * (size_t)p->tensors[t].ranks * (size_t)p->tensors[t].c;
}

/* Thirds of small numbers; dy of a sum is the same on all ranks. */
static void draw(struct rank *r)
{
    for (size_t i = 0; i < VALUES_MAX; i++) {
        const int shared = r->kind == OP_SUM ? 0 : r->comm->rank;
        r->x[i] = ((double)((i * 7 + (size_t)r->comm->rank * 5) % 11) - 5) / 4;
        r->dy[i] = ((double)((i * 5 + (size_t)shared * 3) % 13) - 6) / 8;
    }
}

static void *run(void *arg)
{
    struct rank *r = arg;
    struct plan_group g;
    struct device *d;
    struct plan *plan;
    struct err e = {0};
    int x, y;
    double reduce[64] = {0};
    const float weights[BATCH] = {1, 1};
    struct program *p = build(r->kind, &x, &y, &e);
    assert_int_equal(e.code, 0);
    group_calls(&g, r->comm);
    assert_int_equal(device_open(&d, r->device, &(struct device_options){.threads = 1}, &e), 0);
    const struct plan_options o = {
        .batch = BATCH, .training = true, .compute = d->ops->real, .keep_all = true, .reduce = reduce, .group = &g};
    if (d->ops->plan(d, p, &o, &plan, &e) < 0)
        fail_msg("%s", e.text);
    draw(r);
    r->nx = values(p, x), r->ny = values(p, y);
    d->ops->put(plan, x, r->x, NULL);
    d->ops->put(plan, program_find_tensor(p, "d y"), r->dy, NULL);
    const struct run_args a = {.batch = {.weights = weights}, .grad_scale = 1};
    if (d->ops->run(plan, &a, &e) < 0)
        fail_msg("%s", e.text);
    assert_int_equal(d->ops->get(plan, y, r->y, &e), 0);
    const int dx = program_find_tensor(p, "d x");
    if (dx >= 0)
        assert_int_equal(d->ops->get(plan, dx, r->dx, &e), 0);
    else /* the gradient of y is that of x */
        memcpy(r->dx, r->dy, sizeof r->dx);
    d->ops->plan_close(plan);
    d->ops->close(d);
    program_destroy(p);
    return NULL;
}

static void run_all(struct rank *ranks, const char *device, enum op_kind kind)
{
    struct comm *comms[RANKS];
    pthread_t threads[RANKS];
    assert_int_equal(comm_local_open_threads(comms, RANKS, 60000, NULL), 0);
    for (int i = 0; i < RANKS; i++) {
        ranks[i] = (struct rank){.device = device, .kind = kind, .comm = comms[i]};
        assert_int_equal(pthread_create(&threads[i], NULL, run, &ranks[i]), 0);
    }
    for (int i = 0; i < RANKS; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < RANKS; i++)
        comms[i]->ops->close(comms[i]);
}

/* Element i of what rank r has of y, by its definition. */
static double expected(const struct rank *ranks, int r, size_t i)
{
    const size_t rows = (size_t)BATCH * CHANNELS;
    double sum = 0;
    switch (ranks[r].kind) {
    case OP_SLICE:
        return ranks[r].x[i / TAKEN * CHANNELS + FIRST + i % TAKEN];
    case OP_GATHER:
        return ranks[i / rows].x[i % rows];
    case OP_SCATTER:
        i += (size_t)r * rows;
        break;
    default:
        break;
    }
    for (int k = 0; k < RANKS; k++)
        sum += ranks[k].x[i];
    return sum;
}

static double product(const double *a, const double *b, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

static void check(const char *device, enum op_kind kind)
{
    struct rank ranks[RANKS];
    double forward = 0, backward = 0;
    run_all(ranks, device, kind);
    for (int r = 0; r < RANKS; r++) {
        for (size_t i = 0; i < ranks[r].ny; i++)
            if (fabs(ranks[r].y[i] - expected(ranks, r, i)) > 1e-6)
                fail_msg("%s on %s: element %zu of rank %d is %g, expected %g", op_name(kind), device, i, r,
                         ranks[r].y[i], expected(ranks, r, i));
        if (kind != OP_SUM || r == 0) /* all have the same sum, which is one value */
            forward += product(ranks[r].dy, ranks[r].y, ranks[r].ny);
        backward += product(ranks[r].dx, ranks[r].x, ranks[r].nx);
    }
    if (!(fabs(forward - backward) <= 1e-5) || fabs(forward) < 0.1)
        fail_msg("%s on %s: <dy, y> is %g, <dx, x> is %g", op_name(kind), device, forward, backward);
}

static const char *const devices[] = {
    "ref",
#ifdef HAVE_CPU_DEVICE
    "cpu",
#endif
};

static void values_and_gradients_are_those_of_the_definition(void **state)
{
    (void)state;
    static const enum op_kind kinds[] = {OP_SLICE, OP_GATHER, OP_SCATTER, OP_SUM};
    for (size_t d = 0; d < sizeof devices / sizeof *devices; d++)
        for (int k = 0; k < 4; k++)
            check(devices[d], kinds[k]);
}

static void a_maximum_has_no_derivative(void **state)
{
    (void)state;
    struct err e = {0};
    int x, y;
    program_destroy(build(OP_MAX, &x, &y, &e));
    assert_string_equal(e.text, "'y' has no derivative");
}

static void rows_of_a_group_are_not_taken_for_those_of_a_rank(void **state)
{
    (void)state;
    struct program *p = program_create("op", input_pictures(3, 4, 4, NULL, NULL));
    struct err e = {0};
    program_set_group(p, RANKS);
    const int x = program_gather(p, "all", program_input(p));
    assert_int_equal(program_bn(p, "bn", x, 1e-5f, false), -1);
    assert_true(program_differentiate(p, &e) < 0);
    assert_string_equal(e.text, "'bn' (bn) reads the rows of a group of ranks");
    program_destroy(p);
}

enum { WHOLE = 40, PART_FIRST = 9, PART = 19, SIDE = 3, DROP_BATCH = 3, PLANE = SIDE * SIDE };

/* y of a drop of n channels from `first` on, of the whole. */
static void run_drop(const char *device, int first, int n, const double *x, double *y)
{
    static const float weights[] = {1, 1, 1};
    static const uint32_t samples[] = {70000, 3, 4000000000};
    struct device *d;
    struct plan *pl;
    struct err e = {0};
    struct program *p = program_create("drop", input_pictures(3, 4, 4, NULL, NULL));
    const int t = program_tensor(p, "x", n, SIDE, SIDE);
    const int u = program_drop_part(p, "d", program_act(p, "a", t, ACT_SILU), 0.4, false, first, WHOLE);
    assert_int_equal(program_differentiate(p, &e), 0);
    assert_int_equal(device_open(&d, device, &(struct device_options){.threads = 2}, &e), 0);
    const struct plan_options o = {
        .batch = DROP_BATCH, .training = true, .compute = d->ops->real, .end_op = p->nfwd, .keep_all = true};
    assert_int_equal(d->ops->plan(d, p, &o, &pl, &e), 0);
    assert_int_equal(d->ops->put(pl, t, x, &e), 0);
    const struct run_args a = {.batch = {.weights = weights, .samples = samples}, .seed = 5, .step = 2};
    assert_int_equal(d->ops->run(pl, &a, &e), 0);
    assert_int_equal(d->ops->get(pl, u, y, &e), 0);
    d->ops->plan_close(pl);
    d->ops->close(d);
    program_destroy(p);
}

/* As ranks would that have some of the channels each. */
static void a_part_of_the_channels_drops_what_the_whole_would(void **state)
{
    static double x[DROP_BATCH * WHOLE * PLANE], y[DROP_BATCH * WHOLE * PLANE], part_x[DROP_BATCH * PART * PLANE],
        part_y[DROP_BATCH * PART * PLANE];
    size_t dropped = 0;
    for (size_t i = 0; i < sizeof x / sizeof *x; i++)
        x[i] = 1 + (double)(i % 7);
    run_drop(*state, 0, WHOLE, x, y);
    for (size_t n = 0; n < DROP_BATCH; n++)
        memcpy(part_x + n * PART * PLANE, x + (n * WHOLE + PART_FIRST) * PLANE, PART * PLANE * sizeof *x);
    run_drop(*state, PART_FIRST, PART, part_x, part_y);
    for (size_t n = 0; n < DROP_BATCH; n++)
        for (size_t i = 0; i < PART * PLANE; i++) {
            assert_true(part_y[n * PART * PLANE + i] == y[(n * WHOLE + PART_FIRST) * PLANE + i]);
            dropped += part_y[n * PART * PLANE + i] == 0;
        }
    assert_true(dropped > DROP_BATCH * PART * PLANE / 4 && dropped < DROP_BATCH * PART * PLANE / 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_and_gradients_are_those_of_the_definition),
        cmocka_unit_test(a_maximum_has_no_derivative),
        cmocka_unit_test(rows_of_a_group_are_not_taken_for_those_of_a_rank),
        cmocka_unit_test_prestate(a_part_of_the_channels_drops_what_the_whole_would, (void *)"ref"),
#ifdef HAVE_CPU_DEVICE
        cmocka_unit_test_prestate(a_part_of_the_channels_drops_what_the_whole_would, (void *)"cpu"),
#endif
    };
    return cmocka_run_group_tests_name("ops over a group", tests, NULL, NULL);
}
