/* Building and differentiating programs. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/err.h"
#include "worker/program/program.h"

static const float mean[] = {0.5f, 0.5f, 0.5f}, std[] = {0.25f, 0.25f, 0.25f};

static struct program *images(int side)
{
    struct program *p = program_create("test", input_pictures(3, side, side, mean, std));
    assert_non_null(p);
    return p;
}

static void assert_shape(const struct program *p, int t, int c, int h, int w)
{
    assert_in_range(t, 0, p->ntensors - 1);
    assert_int_equal(p->tensors[t].c, c);
    assert_int_equal(p->tensors[t].h, h);
    assert_int_equal(p->tensors[t].w, w);
}

static void shapes_follow_from_kernel_stride_and_padding(void **state)
{
    struct program *p = images(33);
    int x = program_input(p);
    assert_shape(p, x, 3, 33, 33);
    int c = program_conv(p, "c", x, 8, 7, 2, 3, false);
    assert_shape(p, c, 8, 17, 17);
    int m = program_maxpool(p, "m", c, 3, 2, 1);
    assert_shape(p, m, 8, 9, 9);
    assert_shape(p, program_maxpool(p, "m2", c, 2, 2, 0), 8, 8, 8);
    assert_shape(p, program_conv(p, "one", m, 5, 1, 2, 0, false), 5, 5, 5);
    assert_shape(p, program_avgpool(p, "a", m), 8, 1, 1);
    int l = program_linear(p, "l", m, 10);
    assert_shape(p, l, 10, 1, 1);
    const struct param *w = &p->params[program_find_param(p, "l.weight")];
    assert_int_equal(w->shape[0], 10);
    assert_int_equal(w->shape[1], 8 * 9 * 9);
    program_destroy(p);
}

static void positions_keep_their_places(void **state)
{
    struct program *p = images(8);
    int x = program_conv_groups(p, "c", program_input(p), 12, 3, 2, 1, 3, false);
    assert_shape(p, x, 12, 4, 4);
    assert_int_equal(p->params[program_find_param(p, "c.weight")].shape[1], 1);
    x = program_norm(p, "n", x, 1e-6f, false, false);
    assert_shape(p, x, 12, 4, 4);
    assert_int_equal(-1, program_find_param(p, "n.bias"));
    x = program_linear_each(p, "l", x, 5, true);
    assert_shape(p, x, 5, 4, 4);
    const struct param *w = &p->params[program_find_param(p, "l.weight")];
    assert_true(w->shape[0] == 5 && w->shape[1] == 12);
    assert_int_equal(x, program_drop(p, "none", x, 0, true));
    x = program_drop(p, "d", program_scale(p, "s", program_act(p, "a", x, ACT_GELU), 1e-6, true), 0.1, true);
    assert_shape(p, x, 5, 4, 4);
    const struct param *s = &p->params[program_find_param(p, "s")];
    assert_true(s->ndim == 3 && s->shape[0] == 5 && s->shape[1] == 1 && s->count == 5);
    assert_true(param_initial(s, 1, 3) == 1e-6);
    program_destroy(p);
}

/* kinds of the backward list, -1 at the end */
static void assert_backward(const struct program *p, const int *kinds)
{
    for (int i = p->nfwd; i < p->nops; i++, kinds++) {
        if (*kinds != (int)p->ops[i].kind)
            print_error("operation %d is %s, expected %s\n", i, op_name(p->ops[i].kind),
                        op_name((enum op_kind) * kinds));
        assert_int_equal(p->ops[i].kind, *kinds);
    }
    assert_int_equal(-1, *kinds);
}

/* input, conv, bn, relu, linear, xent */
static struct program *chain(void)
{
    struct program *p = images(4);
    int x = program_conv(p, "conv", program_input(p), 2, 3, 1, 1, true);
    x = program_relu(p, "relu", program_bn(p, "bn", x, 1e-5f, false));
    program_xent(p, program_linear(p, "fc", x, 3));
    return p;
}

static void backward_runs_in_reverse_and_stops_before_the_images(void **state)
{
    struct program *p = chain();
    struct err e = {0};
    assert_int_equal(0, program_differentiate(p, &e));
    assert_int_equal(6, p->nfwd);
    assert_backward(p, (int[]){OP_XENT_BWD, OP_LINEAR_BWD_PARAM, OP_LINEAR_BWD_DATA, OP_RELU_BWD, OP_BN_BWD,
                               OP_CONV_BWD_PARAM, -1});
    const struct op *relu = &p->ops[9], *conv = &p->ops[11];
    assert_int_equal(3, relu->fwd);
    assert_int_equal(program_find_tensor(p, "relu"), relu->in[0]);
    assert_int_equal(program_find_tensor(p, "d relu"), relu->in[1]);
    assert_int_equal(program_find_tensor(p, "d bn"), relu->out);
    assert_int_equal(program_find_tensor(p, "input"), conv->in[0]);
    assert_int_equal(-1, conv->out);
    assert_int_equal(3, conv->kh);
    assert_int_equal(1, conv->pw);
    assert_int_equal(-1, program_find_tensor(p, "d input"));
    assert_true(p->tensors[relu->out].gradient);
    assert_int_equal(3, p->classes);
    assert_int_equal(program_find_tensor(p, "fc"), p->logits);
    program_destroy(p);
}

static size_t offset_of(const struct program *p, const char *name)
{
    int i = program_find_param(p, name);
    assert_in_range(i, 0, p->nparams - 1);
    return p->params[i].offset;
}

static void the_gradient_that_is_complete_first_lies_first(void **state)
{
    struct program *p = chain();
    assert_int_equal(0, program_differentiate(p, NULL));
    /* fc.weight 3 * 32 = 96, the rest padded to 16; conv.weight 2 * 3 * 9 = 54 padded to 64 */
    const char *names[] = {"fc.weight", "fc.bias", "bn.weight", "bn.bias", "conv.weight", "conv.bias"};
    const size_t offsets[] = {0, 96, 112, 128, 144, 208};
    for (int i = 0; i < 6; i++)
        assert_int_equal(offset_of(p, names[i]), offsets[i]);
    assert_int_equal(224, p->n_train);
    assert_int_equal(0, offset_of(p, "bn.running_mean"));
    assert_int_equal(16, offset_of(p, "bn.running_var"));
    assert_int_equal(32, p->n_stats);
    assert_int_equal(224 + 32 + METRIC_N, p->n_reduce);
    assert_int_equal(96 + 3 + 2 + 2 + 54 + 2, program_trainable(p));
    program_destroy(p);
}

static void statistics_lie_in_forward_order(void **state)
{
    struct program *p = images(4);
    int x = program_conv(p, "c1", program_input(p), 20, 1, 1, 0, false);
    x = program_bn(p, "b1", x, 1e-5f, false);
    x = program_bn(p, "b2", program_conv(p, "c2", x, 2, 1, 1, 0, false), 1e-5f, false);
    program_xent(p, program_linear(p, "fc", x, 3));
    assert_int_equal(0, program_differentiate(p, NULL));
    assert_int_equal(0, offset_of(p, "b1.running_mean"));
    assert_int_equal(32, offset_of(p, "b1.running_var"));
    assert_int_equal(64, offset_of(p, "b2.running_mean"));
    assert_true(offset_of(p, "b2.weight") < offset_of(p, "b1.weight"));
    program_destroy(p);
}

static void an_addition_hands_its_gradient_to_both_inputs_without_a_copy(void **state)
{
    struct program *p = program_create("test", input_pictures(3, 1, 1, mean, std));
    int a = program_tensor(p, "a", 2, 1, 1), b = program_tensor(p, "b", 2, 1, 1);
    int ra = program_relu(p, "ra", a), rb = program_relu(p, "rb", b);
    program_add(p, "sum", ra, rb);
    assert_int_equal(0, program_differentiate(p, NULL));
    assert_backward(p, (int[]){OP_RELU_BWD, OP_RELU_BWD, -1});
    int d = program_find_tensor(p, "d sum");
    assert_int_equal(d, p->ops[3].in[1]);
    assert_int_equal(d, p->ops[4].in[1]);
    assert_int_equal(program_find_tensor(p, "d b"), p->ops[3].out);
    assert_int_equal(program_find_tensor(p, "d a"), p->ops[4].out);
    program_destroy(p);
}

static void gradients_of_several_readers_are_summed_before_they_are_used(void **state)
{
    struct program *p = program_create("test", input_pictures(3, 1, 1, mean, std));
    int x = program_relu(p, "x", program_tensor(p, "a", 2, 1, 1));
    int r = program_add(p, "s1", program_relu(p, "r1", x), program_relu(p, "r2", x));
    program_add(p, "s2", r, x);
    assert_int_equal(0, program_differentiate(p, NULL));
    /* s2 gives (s1, x); r2, then r1 add to x; then x's own */
    assert_backward(p, (int[]){OP_RELU_BWD, OP_ADD, OP_RELU_BWD, OP_ADD, OP_RELU_BWD, -1});
    const struct op *first = &p->ops[p->nfwd + 1], *second = &p->ops[p->nfwd + 3], *own = &p->ops[p->nfwd + 4];
    assert_int_equal(program_find_tensor(p, "d s2"), first->in[0]);
    assert_int_equal(p->ops[p->nfwd].out, first->in[1]);
    assert_int_equal(first->out, second->in[0]);
    assert_int_equal(program_find_tensor(p, "d x"), second->out);
    assert_int_equal(program_find_tensor(p, "d x"), own->in[1]);
    program_destroy(p);
}

static void one_operation_alone_keeps_the_gradient_of_its_free_input(void **state)
{
    struct program *p = program_create("test", input_pictures(3, 1, 1, mean, std));
    program_conv(p, "y", program_tensor(p, "x", 3, 5, 5), 4, 3, 2, 1, true);
    assert_int_equal(0, program_differentiate(p, NULL));
    assert_backward(p, (int[]){OP_CONV_BWD_PARAM, OP_CONV_BWD_DATA, -1});
    assert_shape(p, program_find_tensor(p, "d y"), 4, 3, 3);
    assert_shape(p, program_find_tensor(p, "d x"), 3, 5, 5);
    assert_int_equal(-1, p->logits);
    program_destroy(p);
}

static const struct param *param_of(const struct program *p, const char *name)
{
    return &p->params[program_find_param(p, name)];
}

static void the_walk_ends_above_the_lowest_layer_that_is_trained(void **state)
{
    struct program *p = chain();
    program_freeze(p, "conv.*=0,bn.*=0,fc.bias=0");
    assert_int_equal(0, program_differentiate(p, NULL));
    assert_backward(p, (int[]){OP_XENT_BWD, OP_LINEAR_BWD_PARAM, -1});
    assert_int_equal(-1, p->ops[7].param[1]);
    assert_int_equal(-1, program_find_tensor(p, "d relu"));
    assert_int_equal(96, p->n_train);
    /* fc.bias, then bn's 2 and 2, then conv's 54 and 2: each padded to 16 */
    assert_int_equal(96, offset_of(p, "fc.bias"));
    assert_int_equal(112, offset_of(p, "bn.weight"));
    assert_int_equal(144, offset_of(p, "conv.weight"));
    assert_int_equal(96 + 16 + 32 + 64 + 16, program_params(p));
    assert_int_equal(96, program_trainable(p));
    assert_int_equal(3 + 4 + 56, program_frozen(p));
    assert_true(p->ops[2].fixed && param_of(p, "bn.running_mean")->frozen);
    assert_int_equal(0, p->n_stats);
    assert_int_equal(32, program_statistics(p));
    assert_int_equal(96 + METRIC_N, p->n_reduce);
    program_destroy(p);
}

static void a_gradient_passes_what_is_frozen(void **state)
{
    struct program *p = chain();
    struct plan_range r[PROGRAM_READS_MOST];
    program_freeze(p, "bn.*=0,conv.weight=0,fc.weight=0");
    assert_int_equal(0, program_differentiate(p, NULL));
    assert_backward(p, (int[]){OP_XENT_BWD, OP_BIAS_BWD, OP_LINEAR_BWD_DATA, OP_RELU_BWD, OP_BN_BWD, OP_BIAS_BWD, -1});
    assert_int_equal(program_find_param(p, "fc.bias"), p->ops[7].param[0]);
    assert_int_equal(program_find_tensor(p, "d bn"), p->ops[10].in[1]);
    assert_true(p->ops[10].fixed && !program_gives(p, &p->ops[10], 0) && !program_gives(p, &p->ops[10], 1));
    /* fc reads both of its own, which lie apart */
    assert_int_equal(2, program_reads(p, &p->ops[4], r));
    assert_int_equal(offset_of(p, "fc.bias"), r[0].first);
    assert_int_equal(offset_of(p, "fc.weight"), r[1].first);
    assert_int_equal(offset_of(p, "fc.weight") + 96, r[1].end);
    program_destroy(p);
}

static void a_scale_that_is_frozen_is_one_for_gradients_too(void **state)
{
    struct program *p = images(4);
    int x = program_linear_each(p, "l", program_input(p), 2, true);
    x = program_pick(p, "k", program_norm(p, "n", program_scale(p, "s", x, 2, false), 1e-6f, false, true), 0);
    program_xent(p, program_linear(p, "fc", x, 3));
    program_freeze(p, "s=0,n.weight=0");
    assert_int_equal(0, program_differentiate(p, NULL));
    assert_backward(p, (int[]){OP_XENT_BWD, OP_LINEAR_BWD_PARAM, OP_LINEAR_BWD_DATA, OP_PICK_BWD, OP_NORM_BWD, OP_SCALE,
                               OP_LINEAR_BWD_PARAM, -1});
    const struct op *norm = &p->ops[p->nfwd + 4], *scale = &p->ops[p->nfwd + 5];
    assert_true(!program_gives(p, norm, 0) && program_gives(p, norm, 1) && norm->param[0] >= 0);
    assert_int_equal(norm->out, scale->in[0]);
    assert_int_equal(-1, scale->in[1]);
    program_destroy(p);
}

static void assert_refused(struct program *p, const char *text)
{
    struct err e = {0};
    assert_int_equal(-EINVAL, program_differentiate(p, &e));
    if (!strstr(e.text, text))
        print_error("the error is '%s', expected to hold '%s'\n", e.text, text);
    assert_non_null(strstr(e.text, text));
    program_destroy(p);
}

static void the_first_mistake_is_reported(void **state)
{
    struct program *p = images(4);
    int x = program_conv(p, "big", program_input(p), 8, 9, 1, 2, false);
    assert_int_equal(-1, x);
    program_xent(p, program_linear(p, "fc", program_relu(p, "r", x), 0));
    assert_refused(p, "'big': a 9 x 9 window does not fit into 4 x 4 with padding 2");

    p = images(4);
    x = program_input(p);
    program_add(p, "a", x, program_conv(p, "c", x, 8, 1, 1, 0, false));
    assert_refused(p, "'a' adds 3 x 4 x 4 and 8 x 4 x 4");

    p = images(4);
    program_maxpool(p, "pool", program_input(p), 2, 2, 2);
    assert_refused(p, "'pool' has kernel 2, stride 2, padding 2 (expected at least 1, at least 1, 0 to 1)");

    p = images(4);
    program_relu(p, "same", program_relu(p, "same", program_input(p)));
    assert_refused(p, "two tensors are called 'same'");
    p = images(8);
    program_conv_groups(p, "c", program_input(p), 4, 3, 1, 1, 3, true);
    assert_refused(p, "'c' has 3 groups of 3 input and 4 output channels (expected a divisor of both)");
    p = images(8);
    program_drop(p, "d", program_input(p), 1, false);
    assert_refused(p, "'d' drops a share of 1 (expected 0 or more, and less than 1)");
    p = images(8);
    program_norm(p, "n", program_input(p), -1, false, true);
    assert_refused(p, "'n' adds -1 to a variance (expected 0 or more)");

    p = images(4);
    x = program_input(p);
    program_relu(p, "dead", x);
    program_xent(p, program_linear(p, "fc", x, 2));
    assert_refused(p, "nobody reads tensor 'dead'");

    p = images(4);
    program_xent(p, program_input(p));
    assert_refused(p, "the loss reads 3 x 4 x 4");

    p = chain();
    program_relu(p, "late", 0);
    assert_refused(p, "'late' is added after the end of the program");

    p = chain();
    assert_int_equal(0, program_differentiate(p, NULL));
    assert_refused(p, "differentiated twice");

    assert_refused(program_create("test", input_pictures(5, 1, 1, NULL, NULL)), "images of 5 channels");
    struct program *tokens = program_create("test", (struct input){.rows = INPUT_TOKENS, .length = 8, .vocabulary = 9});
    program_input(tokens);
    assert_refused(tokens, "'input' reads pictures");
    assert_refused(program_create("test", (struct input){.rows = INPUT_TOKENS, .length = 8}), "a vocabulary of 0");
    assert_refused(images(4), "no operation");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(positions_keep_their_places),
        cmocka_unit_test(the_walk_ends_above_the_lowest_layer_that_is_trained),
        cmocka_unit_test(a_gradient_passes_what_is_frozen),
        cmocka_unit_test(a_scale_that_is_frozen_is_one_for_gradients_too),
        cmocka_unit_test(shapes_follow_from_kernel_stride_and_padding),
        cmocka_unit_test(backward_runs_in_reverse_and_stops_before_the_images),
        cmocka_unit_test(the_gradient_that_is_complete_first_lies_first),
        cmocka_unit_test(statistics_lie_in_forward_order),
        cmocka_unit_test(an_addition_hands_its_gradient_to_both_inputs_without_a_copy),
        cmocka_unit_test(gradients_of_several_readers_are_summed_before_they_are_used),
        cmocka_unit_test(one_operation_alone_keeps_the_gradient_of_its_free_input),
        cmocka_unit_test(the_first_mistake_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
