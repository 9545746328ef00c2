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
#include "tests/worker/device/cuda/card.h"
#include "worker/device/cuda/plan.h"
#include "worker/device/cuda/tell/watch.h"

enum { BATCH = 2, PATIENCE_S = 60 };

static void open_rig(struct card *r, const struct cuda_options *o)
{
    struct program *p;
    MUST(tiny_build(&p, e));
    card_open(r, p, &(struct fake_options){0}, o, NULL);
    MUST(card_plan(r, BATCH, DT_F32, MEMORY_AUTO, e));
}

static const struct cuda_options checking = {.graphs = true, .check = true}, graphs = {.graphs = true};

/* --- the step */

static void a_step_that_fails_is_named(void **state)
{
    (void)state;
    struct card r;
    struct err why = {0};
    open_rig(&r, &checking);
    MUST(card_run(&r, e));
    assert_string_equal("", r.said);
    fake_gpu_fail_next(r.gpu, KERNEL_BN_BWD_APPLY);
    assert_int_equal(-EIO, card_run(&r, &why));
    if (!strstr(why.text, "bn_bwd of op ") || !strstr(why.text, " of ") || !strstr(why.text, "illegal memory access"))
        fail_msg("%s", why.text);
    card_close(&r);
}

/* A weight that is no number: the convolution is the first whose result is none, and only it is told of. */
static void the_first_result_that_is_no_number_is_named(void **state)
{
    (void)state;
    static const float bad[] = {NAN, INFINITY};
    static const char *const says[] = {"128 NaN and 0 infinite of 512", "infinite of 512 values"};
    for (int k = 0; k < 2; k++) {
        struct card r;
        open_rig(&r, &checking);
        MUST(r.d->ops->upload(r.d, r.at.params + r.p->params[0].offset + 4, &bad[k], sizeof bad[k], e));
        MUST(card_run(&r, e));
        if (count_words(r.said, "no numbers") != 1 || !strstr(r.said, "conv of op ") || !strstr(r.said, " conv") ||
            !strstr(r.said, says[k]))
            fail_msg("%s", r.said);
        card_close(&r);
    }
}

static void checked_steps_compute_the_same(void **state)
{
    (void)state;
    struct card a, b;
    open_rig(&a, &checking);
    open_rig(&b, &graphs);
    for (int i = 0; i < 3; i++) {
        MUST(card_run(&a, e));
        MUST(card_run(&b, e));
    }
    assert_int_equal(0, fake_gpu_counts(a.gpu)->captures);
    fake_gpu_wait(a.gpu, NULL);
    fake_gpu_wait(b.gpu, NULL);
    assert_memory_equal(a.at.reduce, b.at.reduce, a.p->n_reduce * sizeof(float));
    card_close(&a);
    card_close(&b);
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
    struct card r, whole;
    struct hook h = {0};
    const struct run_hooks hooks = {.ctx = &h, .ready = on_ready, .dropped = on_dropped};
    open_rig(&r, &graphs);
    open_rig(&whole, &graphs);
    r.run.hooks = &hooks;
    MUST(card_run(&r, e));
    const long ready = h.ready;
    fake_gpu_fail_capture(r.gpu);
    for (int i = 0; i < 3; i++)
        MUST(card_run(&r, e));
    assert_int_equal(1, count_words(r.said, "cannot be captured as a graph (CUDA: the capture is refused)"));
    assert_int_equal(1, h.dropped);
    assert_int_equal(ready * 5, h.ready); /* walked, captured for nothing, walked three times */
    assert_int_equal(1, fake_gpu_counts(r.gpu)->captures);
    assert_int_equal(0, fake_gpu_counts(r.gpu)->launches);
    whole.run.hooks = &hooks;
    for (int i = 0; i < 4; i++)
        MUST(card_run(&whole, e));
    fake_gpu_wait(r.gpu, NULL);
    fake_gpu_wait(whole.gpu, NULL);
    assert_memory_equal(r.at.reduce, whole.at.reduce, r.p->n_reduce * sizeof(float));
    card_close(&r);
    card_close(&whole);
}

/* --- waits */

static struct ear {
    pthread_mutex_t lock;
    pthread_cond_t change;
    char text[8192]; /* the newest of what was said */
    int asked;       /* streams */
} ear = {.lock = PTHREAD_MUTEX_INITIALIZER, .change = PTHREAD_COND_INITIALIZER};

static void listen(void *arg, const char *line, size_t n)
{
    (void)arg;
    pthread_mutex_lock(&ear.lock);
    size_t used = strlen(ear.text);
    if (used + n >= sizeof ear.text) {
        const size_t half = used / 2;
        memmove(ear.text, ear.text + used - half, half + 1);
        used = half;
    }
    snprintf(ear.text + used, sizeof ear.text - used, "%.*s", (int)n, line);
    pthread_cond_broadcast(&ear.change);
    pthread_mutex_unlock(&ear.lock);
}

/* In the place of a call that does not come back. */
static void wait_until_said(const char *word)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += PATIENCE_S;
    pthread_mutex_lock(&ear.lock);
    int rc = 0;
    while (!strstr(ear.text, word) && rc == 0)
        rc = pthread_cond_timedwait(&ear.change, &ear.lock, &until);
    pthread_mutex_unlock(&ear.lock);
    if (rc)
        fail_msg("'%s' is not in '%s'", word, ear.text);
}

static void ear_open(struct card *r)
{
    ear.text[0] = '\0';
    ear.asked = 0;
    open_rig(r, &graphs);
    ((struct cuda *)r->d)->watch_ms = 20;
    MUST(card_run(r, e));
    log_redirect(listen, NULL);
}

static void ear_close(struct card *r)
{
    card_close(r);
    log_redirect(NULL, NULL);
}

static void a_host_that_waits_for_long_says_for_what(void **state)
{
    (void)state;
    struct card r;
    ear_open(&r);
    watch_wait(((struct cuda *)r.d)->watch, "the end of days");
    wait_until_said("s for the end of days; enqueued last");
    wait_until_said("in run 1");
    wait_until_said("for the end of days: compute stream: busy");
    watch_done(((struct cuda *)r.d)->watch);
    ear_close(&r);
}

static int asked_in_vain(struct gpu *g, struct gpu_stream *s, struct err *e)
{
    (void)g, (void)s;
    wait_until_said("s for the end of days");
    return err_set(e, -EIO, "no answer");
}

static void it_says_so_before_it_asks(void **state)
{
    (void)state;
    struct card r;
    ear_open(&r);
    const struct gpu_ops *real = r.gpu->ops;
    struct gpu_ops silent = *real;
    silent.stream_query = asked_in_vain;
    r.gpu->ops = &silent;
    watch_wait(((struct cuda *)r.d)->watch, "the end of days");
    wait_until_said("compute stream: no answer");
    watch_done(((struct cuda *)r.d)->watch);
    r.gpu->ops = real;
    ear_close(&r);
}

static const struct gpu_ops *below;

static int count_questions(struct gpu *g, struct gpu_stream *s, struct err *e)
{
    pthread_mutex_lock(&ear.lock);
    ear.asked++;
    pthread_mutex_unlock(&ear.lock);
    return below->stream_query(g, s, e);
}

static int end_slowly(struct gpu *g, struct gpu_stream *s, struct gpu_graph **ret, struct err *e)
{
    wait_until_said("s for a graph to be made");
    return below->capture_end(g, s, ret, e);
}

static int launch_slowly(struct gpu *g, struct gpu_graph *x, struct gpu_stream *s, struct err *e)
{
    wait_until_said("s for a graph to be launched");
    return below->graph_launch(g, x, s, e);
}

/* Nor is a stream asked about that is captured. */
static void a_host_that_stands_in_cuda_says_in_which_call(void **state)
{
    (void)state;
    struct card r;
    ear_open(&r);
    below = r.gpu->ops;
    struct gpu_ops slow = *below;
    slow.stream_query = count_questions;
    slow.capture_end = end_slowly;
    slow.graph_launch = launch_slowly;
    r.gpu->ops = &slow;
    MUST(r.d->ops->run(r.plan, &r.run, e));
    assert_int_equal(1, fake_gpu_counts(r.gpu)->launches);
    assert_int_equal(0, ear.asked);
    r.gpu->ops = below;
    ear_close(&r);
}

static void the_first_runs_are_told_of(void **state)
{
    (void)state;
    struct card r;
    log_init(LOG_INFO, "");
    open_rig(&r, &graphs);
    for (int i = 0; i < 8; i++)
        MUST(card_run(&r, e));
    log_init(LOG_WARN, "");
    assert_int_equal(5, count_words(r.said, "batch copied in 1.00 ms, computed in 1.00 ms"));
    assert_int_equal(1, count_words(r.said, "captured as a graph in"));
    card_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_that_fails_is_named),
        cmocka_unit_test(the_first_result_that_is_no_number_is_named),
        cmocka_unit_test(checked_steps_compute_the_same),
        cmocka_unit_test(a_capture_that_fails_is_walked_instead),
        cmocka_unit_test(a_host_that_waits_for_long_says_for_what),
        cmocka_unit_test(it_says_so_before_it_asks),
        cmocka_unit_test(a_host_that_stands_in_cuda_says_in_which_call),
        cmocka_unit_test(the_first_runs_are_told_of),
    };
    return cmocka_run_group_tests_name("nothing dies unnamed", tests, NULL, NULL);
}
