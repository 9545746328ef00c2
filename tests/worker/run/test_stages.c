/* Stages of a pipeline are one process, bit for bit: every schedule, on the devices of this machine; and what could be
 * got wrong about them is noticed. Together with everything else: test_exact.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "tests/support/today.h"
#include "tests/worker/run/exact_run.h"
#include "tests/worker/run/step_rig.h"
#include "worker/comm/comm.h"
#include "worker/device/device.h"

/* One process with so many micro-batches, each with statistics of its own. */
static struct exact_run alone(int parts, const char *device)
{
    return (struct exact_run){.p = {.at = {[SYNC] = 1}}, /* the last batch is short */
                              .world = 1,
                              .tensor = 1,
                              .parts = parts,
                              .sync = true,
                              .device = device};
}

static struct exact_run staged(int parts, struct pipeline line, bool recompute, const char *device)
{
    struct exact_run r = alone(parts, device);
    r.world = line.stages;
    r.pipeline = line;
    r.recompute = recompute;
    return r;
}

static bool same_bits(const struct exact_outcome *a, const struct exact_outcome *b)
{
    return memcmp(a->loss, b->loss, sizeof a->loss) == 0 && memcmp(a->params, b->params, a->n * sizeof *a->params) == 0;
}

static void expect_same_bits(const struct exact_run *r, const struct exact_outcome *want)
{
    static const char *const kinds[] = {PIPELINE_KINDS(CHOICE_NAME)};
    struct exact_outcome got;
    exact_train(r, &got);
    if (!same_bits(&got, want))
        fail_msg("%s: %d stages, %s, %d micro-batches, %d chunks%s: %.1e off", r->device, r->pipeline.stages,
                 kinds[r->pipeline.kind], r->parts, r->pipeline.chunks, r->recompute ? ", recomputing" : "",
                 exact_distance(&got, want));
    free(got.params);
}

static void all_schedules(const char *device)
{
    static const int all[] = {1, 3, 4};
    size_t point = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        const int parts = all[i];
        struct exact_run one = alone(parts, device);
        struct exact_outcome want;
        exact_train(&one, &want);
        for (int stages = 2; stages <= 4; stages++)
            for (int kind = PIPELINE_GPIPE; kind <= PIPELINE_INTERLEAVED; kind++)
                for (int again = 0; again < 2; again++) {
                    const struct pipeline line = {(enum pipeline_kind)kind, stages, parts,
                                                  kind == PIPELINE_INTERLEAVED ? 2 : 1};
                    const struct exact_run r = staged(parts, line, again, device);
                    if (pipeline_check(&line, NULL) == 0 && is_for_today(point++))
                        expect_same_bits(&r, &want);
                }
        free(want.params);
    }
}

static void stages_on_ref_have_the_bits_of_one_process(void **state)
{
    (void)state;
    all_schedules("ref");
}

static void stages_on_cpu_have_the_bits_of_one_process(void **state)
{
    (void)state;
#ifdef HAVE_CPU_DEVICE
    all_schedules("cpu");
#else
    skip();
#endif
}

/* --- mutants: a device or a communicator that does something else */

enum mutant { RIGHT, STATISTICS_TWICE, DROPPED_GRADIENT, LATE_SEND };

struct wrong {
    const struct device_ops *device;
    struct device_ops wrong_device;
    const struct comm_ops *comm;
    struct comm_ops wrong_comm;
    int mutant;
    void *kept; /* what the last message should have had */
    size_t bytes;
};

static _Thread_local struct wrong *wrong;

static int wrong_run(struct plan *pl, const struct run_args *a, struct err *e)
{
    struct run_args r = *a;
    if (wrong->mutant == STATISTICS_TWICE && r.again) {
        static _Thread_local double rest[1 << 16];
        r.again = false;
        r.accumulate = true;
        r.boundary.out = rest;
    }
    if (wrong->mutant == DROPPED_GRADIENT && r.pass == RUN_BACKWARD) /* takes the place of the first one's */
        r.accumulate = false;
    return wrong->device->run(pl, &r, e);
}

/* Each message has what the one before it should have had. */
static int late_isend(struct comm *c, enum comm_channel ch, const void *buf, size_t bytes, int peer, void *stream,
                      struct comm_request **ret, struct err *e)
{
    if (wrong->bytes == bytes) {
        void *now = malloc(bytes);
        memcpy(now, buf, bytes);
        memcpy((void *)(uintptr_t)buf, wrong->kept, bytes);
        free(wrong->kept);
        wrong->kept = now;
    } else {
        free(wrong->kept);
        wrong->kept = memcpy(malloc(bytes), buf, bytes);
        wrong->bytes = bytes;
    }
    return wrong->comm->isend(c, ch, buf, bytes, peer, stream, ret, e);
}

/* By whoever opened it, not by its rank's thread. */
static void close_right(struct comm *c)
{
    struct wrong *w = (struct wrong *)((uintptr_t)c->ops - offsetof(struct wrong, wrong_comm));
    free(w->kept);
    c->ops = w->comm;
    c->ops->close(c);
}

static void mutate(struct step_rig *rig, void *kept, int mutant)
{
    struct device *d = rig->state.device;
    struct comm *c = rig->groups[LAYOUT_STAGES];
    wrong = kept;
    *wrong = (struct wrong){
        .device = d->ops, .wrong_device = *d->ops, .comm = c->ops, .wrong_comm = *c->ops, .mutant = mutant};
    wrong->wrong_device.run = wrong_run;
    wrong->wrong_comm.close = close_right;
    wrong->wrong_comm.isend = mutant == LATE_SEND ? late_isend : c->ops->isend;
    d->ops = &wrong->wrong_device;
    c->ops = &wrong->wrong_comm;
}

static void each_mutant_is_noticed(void **state)
{
    (void)state;
    static const char *const names[] = {[STATISTICS_TWICE] = "running statistics that move twice",
                                        [DROPPED_GRADIENT] = "a micro-batch's gradient that is dropped",
                                        [LATE_SEND] = "a message that is sent late"};
    for (int m = RIGHT; m <= LATE_SEND; m++) {
        const struct pipeline line = {m == STATISTICS_TWICE ? PIPELINE_GPIPE : PIPELINE_1F1B, 3, 4, 1};
        struct exact_run one = alone(4, "ref"), many = staged(4, line, m == STATISTICS_TWICE, "ref");
        struct exact_outcome want, got;
        many.mutate = mutate;
        many.mutant = m;
        exact_train(&one, &want);
        exact_train(&many, &got);
        const double d = exact_distance(&got, &want);
        print_message("# %s: %.1e\n", m ? names[m] : "nothing wrong", d);
        if (m == RIGHT ? d > 0 : !(d > 1e-6))
            fail_msg("%s: %.2e", m ? names[m] : "nothing wrong", d);
        free(want.params);
        free(got.params);
    }
}

/* A device whose second backward pass fails, on the last stage. */
static int failing_run(struct plan *pl, const struct run_args *a, struct err *e)
{
    if (a->pass == RUN_BACKWARD && a->accumulate)
        return err_set(e, -EIO, "out of order");
    return wrong->device->run(pl, a, e);
}

static void break_last(struct step_rig *rig, void *kept, int mutant)
{
    mutate(rig, kept, mutant);
    if (rig->comm->rank == rig->comm->world - 1)
        wrong->wrong_device.run = failing_run;
}

static void a_rank_that_fails_ends_the_others(void **state)
{
    (void)state;
    char text[600];
    struct exact_outcome out;
    struct exact_run r = staged(4, (struct pipeline){PIPELINE_1F1B, 3, 4, 1}, false, "ref");
    r.mutate = break_last;
    assert_int_equal(exact_try(&r, &out, text, sizeof text), 3);
    free(out.params);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stages_on_ref_have_the_bits_of_one_process),
        cmocka_unit_test(stages_on_cpu_have_the_bits_of_one_process),
        cmocka_unit_test(each_mutant_is_noticed),
        cmocka_unit_test(a_rank_that_fails_ends_the_others),
    };
    return cmocka_run_group_tests_name("stages", tests, NULL, NULL);
}
