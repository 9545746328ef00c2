/* The three-device example: y0 = w0 x0 on the first, y1 = y0 + w1 x1 on the second, y = y1 + w2 x2 on the third,
 * where the loss is. Each device has an input of its own; only y0 and y1 travel, and their gradients back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <semaphore.h>
#include <string.h>
#include <time.h>

#include "common/base/err.h"
#include "tests/must.h"
#include "worker/comm/comm.h"
#include "worker/device/device.h"
#include "worker/parallel/ddp.h"
#include "worker/pipeline/stage.h"
#include "worker/program/program.h"

enum { DEVICES = 3, CLASSES = 2, MICRO = 2 };

/* Of device i: x[m] is the input of micro-batch m; w[c] the weight of class c. */
static const uint8_t x[DEVICES][MICRO] = {{51, 102}, {204, 255}, {153, 51}}; /* 0.2, 0.4; 0.8, 1; 0.6, 0.2 */
static const double w[DEVICES][CLASSES] = {{1, -2}, {0.5, 3}, {-1.5, 0.25}};
static const int32_t labels[MICRO] = {0, 1};

struct one {
    int index;
    const struct device_ops *ops; /* NULL: ref's */
    struct comm *comm;
    double loss, gradient[CLASSES];
    int rc;
    struct err e;
};

static _Thread_local int self; /* index */

/* y_i-1 (but on the first) + w_i x_i, and the loss on the last. */
static int build(struct program **ret, int i, struct err *e)
{
    static const char *const layers[] = {"w0", "w1", "w2"}, *const sums[] = {"w0", "y1", "y"};
    struct program *p = program_create("three", input_pictures(1, 1, 1, NULL, NULL));
    const int before = i > 0 ? program_tensor(p, sums[i - 1], CLASSES, 1, 1) : -1;
    int y = program_linear(p, layers[i], program_input(p), CLASSES);
    if (i > 0)
        y = program_add(p, sums[i], before, y);
    if (i == DEVICES - 1)
        program_xent(p, y);
    p->chunks[0] =
        (struct program_chunk){.end = p->nops, .in = before, .out = i < DEVICES - 1 ? y : -1, .learns_before = i > 0};
    p->nchunks = 1;
    *ret = p;
    return program_differentiate(p, e);
}

static int train(struct one *o, struct device *d, const struct program *p, double *params, double *reduce,
                 struct err *e)
{
    struct ownership own;
    struct ddp *ddp = NULL;
    struct stage_options so = {
        .order = {PIPELINE_1F1B, DEVICES, MICRO, 1},
        .index = o->index,
        .comm = o->comm,
        .device = d,
        .program = p,
        .plan = {.batch = 1, .training = true, .compute = DT_F64, .params = params, .stats = params, .reduce = reduce}};
    const float weights[MICRO] = {1, 1};
    const struct run_args all = {
        .batch = {.rows = x[o->index], .labels = labels, .weights = weights}, .grad_scale = 1, .params_version = 1};
    struct comm *groups[LAYOUT_GROUPS] = {0};
    struct stage *g;
    TRY(ownership_init_alone(&own, p, e));
    TRY(ddp_create(&ddp, groups, &own, reduce, METRIC_N, DT_F64, &(struct ddp_options){.wire = DT_F64}, e));
    so.own = &own;
    so.ddp = ddp;
    TRY(stage_open(&g, &so, e));
    TRY(stage_train(g, &all, e));
    TRY(ddp_wait(ddp, e));
    double *metrics = reduce + p->n_train;
    TRY(stage_share_metrics(g, metrics, e));
    o->loss = metrics[METRIC_LOSS];
    memcpy(o->gradient, reduce + p->params[0].offset, sizeof o->gradient);
    stage_close(g);
    ddp_destroy(ddp);
    ownership_finish(&own);
    return 0;
}

static void *run_one(void *arg)
{
    struct one *o = arg;
    struct device *d;
    struct program *p = NULL;
    double params[64] = {0}, reduce[64 + METRIC_N] = {0};
    o->rc = device_open(&d, "ref", &(struct device_options){.threads = 1}, &o->e);
    if (o->rc == 0)
        o->rc = build(&p, o->index, &o->e);
    if (o->rc < 0)
        return NULL;
    d->ops = o->ops ? o->ops : d->ops;
    self = o->index;
    memcpy(params + p->params[0].offset, w[o->index], sizeof w[0]);
    o->rc = train(o, d, p, params, reduce, &o->e);
    program_destroy(p);
    d->ops->close(d);
    return NULL;
}

static void run_all(struct one all[DEVICES], const struct device_ops *ops)
{
    struct comm *comms[DEVICES];
    pthread_t threads[DEVICES];
    struct err e;
    assert_int_equal(comm_local_open_threads(comms, DEVICES, 30000, &e), 0);
    for (int i = 0; i < DEVICES; i++) {
        all[i] = (struct one){.index = i, .ops = ops, .comm = comms[i]};
        assert_int_equal(pthread_create(&threads[i], NULL, run_one, &all[i]), 0);
    }
    for (int i = 0; i < DEVICES; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < DEVICES; i++) {
        comms[i]->ops->close(comms[i]);
        if (all[i].rc < 0)
            fail_msg("device %d: %s", i, all[i].e.text);
    }
}

static void three_devices_compute_one_sum_and_its_gradients(void **state)
{
    (void)state;
    struct one all[DEVICES];
    double loss = 0, gradient[DEVICES][CLASSES] = {{0}};
    for (int m = 0; m < MICRO; m++) {
        double y[CLASSES] = {0};
        for (int i = 0; i < DEVICES; i++)
            for (int c = 0; c < CLASSES; c++)
                y[c] += w[i][c] * x[i][m] / 255;
        const double sum = exp(y[0]) + exp(y[1]);
        loss += log(sum) - y[labels[m]];
        for (int i = 0; i < DEVICES; i++)
            for (int c = 0; c < CLASSES; c++)
                gradient[i][c] += (exp(y[c]) / sum - (c == labels[m])) * x[i][m] / 255;
    }
    run_all(all, NULL);
    for (int i = 0; i < DEVICES; i++) {
        assert_true(fabs(all[i].loss - loss) < 1e-6);
        for (int c = 0; c < CLASSES; c++)
            assert_true(fabs(all[i].gradient[c] - gradient[i][c]) < 1e-6);
    }
}

/* --- while nothing has come in */

static struct {
    sem_t prepared;
    int met; /* stages that the first one has seen prepare */
} eager;

static int prepare(struct plan *pl, uint64_t version, struct err *e)
{
    (void)pl, (void)e;
    if (version == 1 && self > 0)
        sem_post(&eager.prepared);
    return 0;
}

/* The first stage lets nothing go on before the others have prepared. */
static int run_late(struct plan *pl, const struct run_args *a, struct err *e)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 20;
    for (; self == 0 && eager.met < DEVICES - 1; eager.met++)
        if (sem_timedwait(&eager.prepared, &until) < 0)
            return err_set(e, -ETIMEDOUT, "%d stages of %d prepared while they waited", eager.met, DEVICES - 1);
    return device_ref_ops.run(pl, a, e);
}

static void a_stage_prepares_while_it_waits_for_the_one_before(void **state)
{
    struct device_ops ops = device_ref_ops;
    struct one all[DEVICES];
    (void)state;
    ops.prepare = prepare;
    ops.run = run_late;
    sem_init(&eager.prepared, 0, 0);
    run_all(all, &ops);
    assert_int_equal(eager.met, DEVICES - 1);
    sem_destroy(&eager.prepared);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(three_devices_compute_one_sum_and_its_gradients),
        cmocka_unit_test(a_stage_prepares_while_it_waits_for_the_one_before),
    };
    return cmocka_run_group_tests_name("a stage", tests, NULL, NULL);
}
