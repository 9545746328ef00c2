/* A first convolution and the one that it is computed as: the same products, and which are. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "common/base/err.h"
#include "tests/must.h"
#include "worker/device/fold.h"
#include "worker/program/program.h"

static const float mean[4] = {0.5f, 0.5f, 0.5f, 0.5f}, std[4] = {0.25f, 0.25f, 0.25f, 0.25f};

struct form {
    int height, width, kernel, stride, pad;
};

/* again: something else reads the images, too. */
static struct program *network(const struct form *f, bool again)
{
    struct program *p = program_create("stem", input_pictures(3, f->height, f->width, mean, std));
    const int images = program_input(p);
    int x = program_conv(p, "conv", images, 8, f->kernel, f->stride, f->pad, false);
    if (again)
        x = program_add(p, "add", x, program_conv(p, "other", images, 8, f->kernel, f->stride, f->pad, false));
    program_xent(p, program_linear(p, "fc", program_avgpool(p, "mean", x), 5));
    MUST(program_differentiate(p, e));
    return p;
}

/* Of one direction: each place of the filter is met once, with the element that the definition has there. */
static void expect_same_products(const struct fold *f, int side, const struct form *n, int size)
{
    const int out = (size + 2 * n->pad - n->kernel) / 2 + 1;
    assert_int_equal(out, f->size[side] - f->filter[side] + 1);
    for (int o = 0; o < out; o++)
        for (int i = 0, met = 0; i < f->filter[side]; i++)
            for (int a = 0; a < 2; a++) {
                const int t = 2 * i + a - f->skip[side], x = 2 * (o + i - f->before[side]) + a;
                assert_int_equal(x, 2 * o + t - n->pad);
                if (t >= 0 && t < n->kernel)
                    assert_int_equal(met++, t);
                if (i == f->filter[side] - 1 && a == 1)
                    assert_int_equal(met, n->kernel);
            }
}

/* Every element of the image has a place of its own behind the zeros. */
static void expect_places(const struct fold *f, const struct form *n)
{
    bool taken[FOLD_PIXEL][32][32] = {{{false}}};
    for (int i = 0; i < 3 * n->height * n->width; i++) {
        int c = i % 3, h = i / 3 / n->width, w = i / 3 % n->width;
        fold_place(f, &c, &h, &w);
        assert_in_range(c, 0, FOLD_PIXEL - 1);
        assert_in_range(h, f->before[0], f->size[0] - 1);
        assert_in_range(w, f->before[1], f->size[1] - 1);
        assert_false(taken[c][h][w]);
        taken[c][h][w] = true;
    }
}

static void the_same_products_are_summed(void **state)
{
    (void)state;
    for (int kernel = 3; kernel <= 9; kernel += 2)
        for (int pad = 0; pad < kernel; pad++) {
            const struct form n = {.height = 12, .width = 18, .kernel = kernel, .stride = 2, .pad = pad};
            struct program *p = network(&n, false);
            const struct fold f = fold_find(p);
            assert_int_equal(OP_CONV, p->ops[f.conv].kind);
            expect_same_products(&f, 0, &n, n.height);
            expect_same_products(&f, 1, &n, n.width);
            expect_places(&f, &n);
            program_destroy(p);
        }
}

/* As a ResNet's: 7x7 over 224 x 224 is 4x4 over 115 x 115, backward as well; other ops keep their own. */
static void a_window_is_that_of_what_is_computed(void **state)
{
    (void)state;
    struct program *p = network(&(struct form){224, 224, 7, 2, 3}, false);
    const struct fold f = fold_find(p), none = {.conv = -1};
    assert_int_equal(115, f.size[0]);
    assert_int_equal(115, f.size[1]);
    for (int i = 0; i < p->nops; i++) {
        if (p->ops[i].kind != OP_CONV && p->ops[i].kind != OP_CONV_BWD_PARAM)
            continue;
        const struct fold_window w = fold_window(&f, p, i), own = fold_window(&none, p, i);
        for (int side = 0; side < 2; side++) {
            assert_true(w.filter[side] == 4 && w.stride[side] == 1 && w.pad[side] == 0);
            assert_true(own.filter[side] == 7 && own.stride[side] == 2 && own.pad[side] == 3);
        }
    }
    program_destroy(p);
}

static void what_has_not_that_form_is_left_alone(void **state)
{
    (void)state;
    static const struct form other[] = {{16, 16, 3, 1, 1}, {16, 16, 7, 3, 3}, {16, 16, 1, 2, 0}, {16, 16, 2, 2, 0},
                                        {16, 16, 4, 2, 1}, {15, 16, 7, 2, 3}, {16, 15, 7, 2, 3}};
    for (size_t i = 0; i < sizeof other / sizeof *other; i++) {
        struct program *p = network(&other[i], false);
        assert_int_equal(-1, fold_find(p).conv);
        program_destroy(p);
    }
    struct program *p = network(&(struct form){16, 16, 7, 2, 3}, true);
    assert_int_equal(-1, fold_find(p).conv);
    program_destroy(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_products_are_summed),
        cmocka_unit_test(a_window_is_that_of_what_is_computed),
        cmocka_unit_test(what_has_not_that_form_is_left_alone),
    };
    return cmocka_run_group_tests_name("folding the first convolution", tests, NULL, NULL);
}
