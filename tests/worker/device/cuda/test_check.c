/* Nothing dies unnamed: the step that fails or whose result is no number is named, a capture that fails is walked
 * instead, a host that waits says for what, and the first runs are told of. On a GPU that is not there. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/err.h"
#include "common/base/log.h"
#include "tests/must.h"
#include "tests/worker/device/cuda/fake_gpu.h"
#include "tests/worker/device/cuda/tiny.h"
#include "worker/device/cuda/plan.h"
#include "worker/device/cuda/tell/watch.h"

enum { BATCH = 2, PATIENCE_S = 60 };

struct rig {
    struct program *p;
    struct gpu *gpu;
    struct device *d;
    struct plan *plan;
    struct arenas at;
    struct fake_counts at_close;
    uint8_t images[BATCH * TINY_SIZE * TINY_SIZE];
    int32_t labels[BATCH];
    float weights[BATCH];
    struct run_args run;
    char said[16384];
};

static void hear(void *arg, const char *line, size_t n)
{
    struct rig *r = arg;
    const size_t used = strlen(r->said);
    snprintf(r->said + used, sizeof r->said - used, "%.*s", (int)n, line);
}

static int count_words(const char *text, const char *word)
{
    int n = 0;
    for (; (text = strstr(text, word)); text += strlen(word))
        n++;
    return n;
}

static void open_rig(struct rig *r, const struct cuda_options *o)
{
    *r = (struct rig){0};
    MUST(tiny_build(&r->p, e));
    fake_gpu_open(&r->gpu, &(struct fake_options){.at_close = &r->at_close});
    MUST(cuda_open_on(&r->d, r->gpu, NULL, o, e));
    arenas_open(&r->at, r->d, r->p);
    MUST(r->d->ops->sync(r->d, e));
    arenas_fill(&r->at, r->p);
    const struct plan_options plan = {.batch = BATCH,
                                      .training = true,
                                      .compute = DT_F32,
                                      .params = r->at.params,
                                      .stats = r->at.stats,
                                      .reduce = r->at.reduce};
    MUST(r->d->ops->plan(r->d, r->p, &plan, &r->plan, e));
    noise_fill(r->images, sizeof r->images);
    for (int i = 0; i < BATCH; i++)
        r->weights[i] = 1;
    r->run = (struct run_args){.batch = {.images = r->images, .labels = r->labels, .weights = r->weights},
                               .grad_scale = 1,
                               .params_version = 1};
}

static void close_rig(struct rig *r)
{
    r->d->ops->plan_close(r->plan);
    arenas_close(&r->at, r->d);
    r->d->ops->close(r->d);
    program_destroy(r->p);
    assert_given_back(&r->at_close);
}

static int run(struct rig *r, struct err *e)
{
    r->run.params_version++;
    log_redirect(hear, r);
    const int rc = r->d->ops->run(r->plan, &r->run, e);
    log_redirect(NULL, NULL);
    return rc;
}

static const struct cuda_options checking = {.graphs = true, .check = true}, graphs = {.graphs = true};

/* --- the step */

static void a_step_that_fails_is_named(void **state)
{
    (void)state;
    struct rig r;
    struct err why = {0};
    open_rig(&r, &checking);
    MUST(run(&r, e));
    assert_string_equal("", r.said);
    fake_gpu_fail_next(r.gpu, KERNEL_BN_BWD_APPLY);
    assert_int_equal(-EIO, run(&r, &why));
    if (!strstr(why.text, "bn_bwd of op ") || !strstr(why.text, " of ") || !strstr(why.text, "illegal memory access"))
        fail_msg("%s", why.text);
    close_rig(&r);
}

/* A weight that is no number: the convolution is the first whose result is none, and only it is told of. */
static void the_first_result_that_is_no_number_is_named(void **state)
{
    (void)state;
    static const float bad[] = {NAN, INFINITY};
    static const char *const says[] = {"128 NaN and 0 infinite of 512", "infinite of 512 values"};
    for (int k = 0; k < 2; k++) {
        struct rig r;
        open_rig(&r, &checking);
        MUST(r.d->ops->upload(r.d, r.at.params + r.p->params[0].offset + 4, &bad[k], sizeof bad[k], e));
        MUST(run(&r, e));
        if (count_words(r.said, "no numbers") != 1 || !strstr(r.said, "conv of op ") || !strstr(r.said, " conv") ||
            !strstr(r.said, says[k]))
            fail_msg("%s", r.said);
        close_rig(&r);
    }
}

static void checked_steps_compute_the_same(void **state)
{
    (void)state;
    struct rig a, b;
    open_rig(&a, &checking);
    open_rig(&b, &graphs);
    for (int i = 0; i < 3; i++) {
        MUST(run(&a, e));
        MUST(run(&b, e));
    }
    assert_int_equal(0, fake_gpu_counts(a.gpu)->captures);
    fake_gpu_wait(a.gpu, NULL);
    fake_gpu_wait(b.gpu, NULL);
    assert_memory_equal(a.at.reduce, b.at.reduce, a.p->n_reduce * sizeof(float));
    close_rig(&a);
    close_rig(&b);
}

/* --- captures */

struct hook {
    long ready, dropped;
};

static int on_ready(void *ctx, size_t first, size_t end, void *stream, struct err *e)
{
    ((struct hook *)ctx)->ready++;
    return 0;
}

static void on_dropped(void *ctx)
{
    ((struct hook *)ctx)->dropped++;
}

static void a_capture_that_fails_is_walked_instead(void **state)
{
    (void)state;
    struct rig r, whole;
    struct hook h = {0};
    const struct run_hooks hooks = {.ctx = &h, .ready = on_ready, .dropped = on_dropped};
    open_rig(&r, &graphs);
    open_rig(&whole, &graphs);
    r.run.hooks = &hooks;
    MUST(run(&r, e));
    const long ready = h.ready;
    fake_gpu_fail_capture(r.gpu);
    for (int i = 0; i < 3; i++)
        MUST(run(&r, e));
    assert_int_equal(1, count_words(r.said, "cannot be captured as a graph (CUDA: the capture is refused)"));
    assert_int_equal(1, h.dropped);
    assert_int_equal(ready * 5, h.ready); /* walked, captured for nothing, walked three times */
    assert_int_equal(1, fake_gpu_counts(r.gpu)->captures);
    assert_int_equal(0, fake_gpu_counts(r.gpu)->launches);
    whole.run.hooks = &hooks;
    for (int i = 0; i < 4; i++)
        MUST(run(&whole, e));
    fake_gpu_wait(r.gpu, NULL);
    fake_gpu_wait(whole.gpu, NULL);
    assert_memory_equal(r.at.reduce, whole.at.reduce, r.p->n_reduce * sizeof(float));
    close_rig(&r);
    close_rig(&whole);
}

/* --- waits */

struct ear {
    pthread_mutex_t lock;
    pthread_cond_t change;
    char line[1024];
};

static void listen(void *arg, const char *line, size_t n)
{
    struct ear *ear = arg;
    pthread_mutex_lock(&ear->lock);
    snprintf(ear->line, sizeof ear->line, "%.*s", (int)n, line);
    pthread_cond_signal(&ear->change);
    pthread_mutex_unlock(&ear->lock);
}

/* In the place of a call that does not come back. */
static void wait_for_a_line(struct ear *ear)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += PATIENCE_S;
    pthread_mutex_lock(&ear->lock);
    while (!ear->line[0])
        assert_int_equal(0, pthread_cond_timedwait(&ear->change, &ear->lock, &until));
    pthread_mutex_unlock(&ear->lock);
}

static void a_host_that_waits_for_long_says_for_what(void **state)
{
    (void)state;
    struct rig r;
    struct ear ear = {.lock = PTHREAD_MUTEX_INITIALIZER, .change = PTHREAD_COND_INITIALIZER};
    open_rig(&r, &graphs);
    ((struct cuda *)r.d)->watch_ms = 20;
    MUST(run(&r, e));
    log_redirect(listen, &ear);
    watch_wait(((struct cuda *)r.d)->watch, "the end of days");
    wait_for_a_line(&ear);
    watch_done(((struct cuda *)r.d)->watch);
    close_rig(&r);
    log_redirect(NULL, NULL);
    if (!strstr(ear.line, "s for the end of days") || !strstr(ear.line, "in run 1;") ||
        !strstr(ear.line, "compute stream: busy"))
        fail_msg("%s", ear.line);
}

static void the_first_runs_are_told_of(void **state)
{
    (void)state;
    struct rig r;
    log_init(LOG_INFO, "");
    open_rig(&r, &graphs);
    for (int i = 0; i < 8; i++)
        MUST(run(&r, e));
    log_init(LOG_WARN, "");
    assert_int_equal(5, count_words(r.said, "batch copied in 1.00 ms, computed in 1.00 ms"));
    assert_int_equal(1, count_words(r.said, "captured as a graph in"));
    close_rig(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_that_fails_is_named),
        cmocka_unit_test(the_first_result_that_is_no_number_is_named),
        cmocka_unit_test(checked_steps_compute_the_same),
        cmocka_unit_test(a_capture_that_fails_is_walked_instead),
        cmocka_unit_test(a_host_that_waits_for_long_says_for_what),
        cmocka_unit_test(the_first_runs_are_told_of),
    };
    return cmocka_run_group_tests_name("nothing dies unnamed", tests, NULL, NULL);
}
