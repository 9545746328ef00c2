/* Layouts of oneDNN's convolutions: 8 channels in a block of 8, or 16 of 16, are NHWC at the same time, and have both
 * names. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/base/err.h"
#include "worker/device/cpu/dnnl_wrap.h"

static int create(struct dnn *d, int c, int k, int src, int dst, struct dnn_kernel **ret)
{
    struct err e = {0};
    const struct dnn_shape s = {.training = true,
                                .n = 4,
                                .c = c,
                                .h = 14,
                                .w = 14,
                                .k = k,
                                .oh = 14,
                                .ow = 14,
                                .kh = 5,
                                .kw = 5,
                                .sh = 1,
                                .sw = 1,
                                .ph = 2,
                                .pw = 2,
                                .src_type = DT_F32,
                                .dst_type = DT_F32};
    return dnn_kernel_create(d, &s, DNN_FORWARD, src, dst, NULL, ret, &e);
}

/* Also of the lone input channel, which is plain and NHWC. */
static void onednn_may_choose_any_layout_of_8_and_16_channels(void **state)
{
    static const int channels[][2] = {{1, 8}, {1, 16}, {8, 8}, {8, 16}, {16, 16}, {16, 32}, {32, 16}};
    struct dnn_kernel *k;
    for (size_t i = 0; i < sizeof(channels) / sizeof(channels[0]); i++) {
        if (create(*state, channels[i][0], channels[i][1], LAYOUT_ANY, LAYOUT_ANY, &k) < 0)
            fail_msg("%d to %d channels: a layout that has no name", channels[i][0], channels[i][1]);
        dnn_kernel_destroy(k);
    }
}

static bool is_slow(struct dnn *d, int c, int k, int src, int dst)
{
    struct dnn_kernel *kernel;
    if (create(d, c, k, src, dst, &kernel) < 0)
        return true;
    const bool slow = dnn_reference(kernel);
    dnn_kernel_destroy(kernel);
    return slow;
}

static void a_full_block_is_as_fast_as_several(void **state)
{
    struct dnn *d = *state;
    const int b = dnn_lanes();
    if (!is_slow(d, 4 * b, 4 * b, b, b)) {
        assert_false(is_slow(d, b, b, b, b));
        assert_false(is_slow(d, b, 4 * b, b, b));
        assert_false(is_slow(d, 4 * b, b, b, b));
    }
    if (!is_slow(d, 4 * b, 4 * b, 4 * b, 4 * b)) { /* NHWC */
        assert_false(is_slow(d, b, 4 * b, b, 4 * b));
        assert_false(is_slow(d, 4 * b, b, 4 * b, b));
    }
}

static int open_dnn(void **state)
{
    struct err e = {0};
    struct dnn *d = NULL;
    const int rc = dnn_open(&d, &e);
    *state = d;
    return rc;
}

static int close_dnn(void **state)
{
    dnn_close(*state);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(onednn_may_choose_any_layout_of_8_and_16_channels),
        cmocka_unit_test(a_full_block_is_as_fast_as_several),
    };
    return cmocka_run_group_tests_name("layouts of oneDNN's convolutions", tests, open_dnn, close_dnn);
}
