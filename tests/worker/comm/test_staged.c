/* Device memory over a host communicator: every call gives what host memory gives, cut into pieces or not, control
 * untouched. The device is one whose memory is the host's, and which counts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "tests/worker/comm/ranks.h"
#include "worker/device/device.h"

static atomic_long copies, taken;

static int host_alloc(struct device *d, size_t bytes, void **ret, struct err *e)
{
    taken++;
    *ret = calloc(1, bytes);
    return 0;
}

static void host_release(struct device *d, void *p)
{
    taken--;
    free(p);
}

static int copy(struct device *d, void *stream, void *to, const void *from, size_t bytes, struct err *e)
{
    copies++;
    memcpy(to, from, bytes);
    return *(int *)stream == 7 ? 0 : err_set(e, -EINVAL, "another stream");
}

static int sync_stream(struct device *d, void *stream, struct err *e)
{
    return 0;
}

static const struct device_async async = {
    .host_alloc = host_alloc, .host_release = host_release, .copy_in = copy, .copy_out = copy, .sync = sync_stream};
static const struct device_ops ops = {.name = "counting", .async = &async};
static struct device device = {&ops};

static int sum_control(struct comm *c, int rank, void *arg, struct err *e)
{
    double x = rank;
    TRY(c->ops->all_reduce(c, COMM_CONTROL, &x, 1, DT_F64, COMM_SUM, NULL, e));
    return x == 1 ? 0 : err_set(e, -EIO, "%g", x);
}

static void stage_all(struct ranks *w)
{
    struct err e;
    ranks_open(w, "local", 2, 20000);
    for (int r = 0; r < 2; r++)
        assert_int_equal(comm_staged(&w->comm[r], w->comm[r], &device, &e), 0);
}

static void staged_calls_are_right_in_one_piece_and_in_many(void **state)
{
    (void)state;
    static const size_t sizes[] = {2, 1000, 3 << 20}; /* the last: 12 MiB of fp32, the stage holds 4 */
    struct ranks w;
    int stream = 7;
    stage_all(&w);
    for (int call = 0; call < 2 * KNOWN_CALL_COUNT; call++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            struct ranks_call j = {.k = {.call = (enum known_call)(call / 2),
                                         .type = DT_F32,
                                         .op = COMM_SUM,
                                         .root = 1,
                                         .n = sizes[i],
                                         .uneven = call % 2},
                                   .ch = COMM_GRADIENTS,
                                   .stream = &stream};
            ranks_run(&w, ranks_known, &j);
            for (int r = 0; r < 2; r++)
                if (w.rc[r] < 0)
                    fail_msg("%s", w.err[r].text);
        }
    ranks_close(&w);
    assert_int_equal(taken, 0);
}

static void control_messages_are_not_staged(void **state)
{
    (void)state;
    struct ranks w;
    stage_all(&w);
    const long before = copies;
    ranks_run(&w, sum_control, NULL);
    for (int r = 0; r < 2; r++)
        if (w.rc[r] < 0)
            fail_msg("%s", w.err[r].text);
    assert_int_equal(copies, before);
    ranks_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(staged_calls_are_right_in_one_piece_and_in_many),
        cmocka_unit_test(control_messages_are_not_staged),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
