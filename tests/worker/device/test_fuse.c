/* Which ops ride along with which. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "worker/device/device.h"
#include "worker/device/fuse.h"
#include "worker/program/program.h"

static const float mean[3] = {0.5f, 0.5f, 0.5f}, std[3] = {0.25f, 0.25f, 0.25f};

struct net {
    struct program *p;
    struct fused *f;
    int *readers;
};

static int bn_of(struct program *p, const char *name, int x)
{
    char conv[32];
    snprintf(conv, sizeof conv, "%s.conv", name);
    return program_bn(p, name, program_conv(p, conv, x, 4, 1, 1, 0, false), 1e-5f, false);
}

static struct net begin(int *ret_x)
{
    struct net n = {.p = program_create("few ops", input_pictures(3, 4, 4, mean, std))};
    *ret_x = program_input(n.p);
    return n;
}

static void finish(struct net *n, int x, bool training, bool nothing)
{
    struct err e = {0};
    program_xent(n->p, program_linear(n->p, "fc", program_avgpool(n->p, "mean", x), 5));
    if (program_differentiate(n->p, &e) < 0)
        fail_msg("%s", e.text);
    n->f = calloc((size_t)n->p->nops, sizeof *n->f);
    n->readers = calloc((size_t)n->p->ntensors, sizeof *n->readers);
    fuse_readers(n->p, training, n->readers);
    fuse_ops(n->p, 0, training ? n->p->nops : n->p->nfwd, n->readers, nothing, n->f);
}

static void end(struct net *n)
{
    free(n->f);
    free(n->readers);
    program_destroy(n->p);
}

static int find(const struct net *n, enum op_kind k, int which)
{
    for (int i = 0; i < n->p->nops; i++)
        if (n->p->ops[i].kind == k && which-- == 0)
            return i;
    fail_msg("no such op");
    return -1;
}

static void a_relu_takes_its_batch_norm_along(void **state)
{
    int x;
    struct net n = begin(&x);
    finish(&n, program_relu(n.p, "relu", bn_of(n.p, "a", x)), true, false);
    const int bn = find(&n, OP_BN, 0), relu = find(&n, OP_RELU, 0), bwd = find(&n, OP_BN_BWD, 0);
    assert_true(n.f[bn].skip && !n.f[relu].skip);
    assert_int_equal(bn, n.f[relu].bn);
    assert_int_equal(-1, n.f[relu].add);
    assert_int_equal(-1, n.f[relu].other);
    assert_int_equal(find(&n, OP_RELU_BWD, 0), n.f[bwd].relu_bwd);
    assert_false(n.f[bwd].store_dz);
    end(&n);
}

static void the_later_of_two_batch_norms_takes_the_sum_along(void **state)
{
    int x;
    struct net n = begin(&x);
    int a = bn_of(n.p, "a", x), b = bn_of(n.p, "b", x);
    finish(&n, program_relu(n.p, "relu", program_add(n.p, "add", a, b)), true, false);
    const int relu = find(&n, OP_RELU, 0);
    assert_int_equal(find(&n, OP_BN, 1), n.f[relu].bn);
    assert_int_equal(find(&n, OP_ADD, 0), n.f[relu].add);
    assert_int_equal(a, n.f[relu].other);
    assert_false(n.f[find(&n, OP_BN, 0)].skip);
    assert_true(n.f[find(&n, OP_BN, 1)].skip);
    end(&n);
}

/* Both summands' gradients are what the ReLU lets through: it must be stored. */
static void a_gradient_that_two_ops_read_is_stored(void **state)
{
    int x;
    struct net n = begin(&x);
    int a = program_relu(n.p, "first", bn_of(n.p, "a", x)), b = bn_of(n.p, "b", a);
    finish(&n, program_relu(n.p, "relu", program_add(n.p, "add", b, a)), true, false);
    int with_store = 0;
    for (int i = 0; i < n.p->nops; i++)
        with_store += n.p->ops[i].kind == OP_BN_BWD && n.f[i].relu_bwd >= 0 && n.f[i].store_dz;
    assert_int_equal(1, with_store);
    end(&n);
}

static void what_two_ops_read_is_not_taken_along(void **state)
{
    int x;
    struct net n = begin(&x);
    int a = bn_of(n.p, "a", x);
    finish(&n, program_add(n.p, "add", program_relu(n.p, "relu", a), a), true, false);
    assert_false(n.f[find(&n, OP_BN, 0)].skip);
    assert_int_equal(-1, n.f[find(&n, OP_RELU, 0)].bn);
    end(&n);
}

static void a_sum_with_itself_is_left_alone(void **state)
{
    int x;
    struct net n = begin(&x);
    int a = bn_of(n.p, "a", x);
    finish(&n, program_add(n.p, "add", a, a), false, false);
    assert_false(n.f[find(&n, OP_BN, 0)].skip || n.f[find(&n, OP_ADD, 0)].skip);
    end(&n);
}

static void every_op_stands_alone_where_tests_want_every_tensor(void **state)
{
    int x;
    struct net n = begin(&x);
    finish(&n, program_relu(n.p, "relu", bn_of(n.p, "a", x)), true, true);
    for (int i = 0; i < n.p->nops; i++)
        assert_false(n.f[i].skip);
    end(&n);
}

static void chain(struct net *n)
{
    const struct plan_options o = {.compute = DT_F32};
    fuse_chains(n->p, &o, 0, n->p->nops, n->readers, n->f);
}

static void ops_on_elements_are_one_pass_where_nobody_else_reads_between_them(void **state)
{
    int x;
    struct net n = begin(&x);
    x = program_conv(n.p, "conv", x, 4, 1, 1, 0, false);
    int y = program_act(n.p, "act", program_norm(n.p, "norm", x, 0, false, true), ACT_GELU);
    y = program_drop(n.p, "drop", program_scale(n.p, "scale", y, 1, true), 0.5, true);
    finish(&n, program_relu(n.p, "relu", program_add(n.p, "add", x, y)), true, false);
    chain(&n);
    const int act = find(&n, OP_ACT, 0), scale = find(&n, OP_SCALE, 0), drop = find(&n, OP_DROP, 0),
              add = find(&n, OP_ADD, 0), relu = find(&n, OP_RELU, 0);
    /* act's result is read by scale's backward, too; what add makes by relu alone */
    assert_false(n.f[act].skip || n.f[act].chain >= 0);
    assert_true(n.f[scale].skip && n.f[drop].skip && n.f[add].skip && !n.f[relu].skip);
    assert_true(n.f[scale].next == drop && n.f[drop].next == add && n.f[add].next == relu);
    assert_int_equal(scale, n.f[relu].chain);
    assert_int_equal(n.p->ops[drop].out, fuse_value(n.p, &n.p->ops[add], &n.p->ops[drop]));
    /* back: the gradient behind relu goes two ways; the gradient of scale ends a chain, as its sums must be on time */
    const int drop_bwd = find(&n, OP_DROP_BWD, 0), scale_bwd = find(&n, OP_SCALE_BWD, 0),
              act_bwd = find(&n, OP_ACT_BWD, 0);
    assert_int_equal(-1, n.f[find(&n, OP_RELU_BWD, 0)].next);
    assert_true(n.f[drop_bwd].next == scale_bwd && n.f[scale_bwd].chain == drop_bwd);
    assert_true(n.f[scale_bwd].next < 0 && n.f[act_bwd].chain < 0);
    assert_int_equal(n.p->ops[scale_bwd].in[1], fuse_value(n.p, &n.p->ops[scale_bwd], NULL));
    end(&n);
}

/* In halves of operands alone the linear layer's result is a half, what follows is not. */
static void a_chain_has_results_of_one_type(void **state)
{
    int x;
    struct net n = begin(&x);
    x = program_linear_each(n.p, "linear", program_scale(n.p, "first", x, 1, true), 4, true);
    finish(&n, program_relu(n.p, "r", program_drop(n.p, "drop", x, 0.5, false)), true, false);
    const struct plan_options o = {.compute = DT_BF16, .half = HALF_OPERANDS};
    fuse_chains(n.p, &o, 0, n.p->nops, n.readers, n.f);
    assert_int_equal(find(&n, OP_DROP, 0), n.f[find(&n, OP_RELU, 0)].chain);
    assert_int_equal(-1, n.f[find(&n, OP_RELU_BWD, 0)].next); /* what drop's backward makes is a half */
    end(&n);
}

static void what_outlives_a_slice_is_what_others_may_ask_for(void **state)
{
    int x;
    struct net n = begin(&x);
    int a = bn_of(n.p, "a", x), relu = program_relu(n.p, "relu", a);
    finish(&n, relu, true, false);
    const struct program *p = n.p;
    const int conv = p->ops[find(&n, OP_CONV, 0)].out, all = p->nops, cut = find(&n, OP_RELU, 0) + 1;
    int used[64] = {0};
    for (int i = 0; i < p->nfwd; i++)
        for (int k = 0; k < 2; k++)
            if (p->ops[i].in[k] >= 0)
                used[p->ops[i].in[k]]++;
    assert_false(fuse_outlives(p, 0, all, n.readers, conv));
    assert_false(fuse_outlives(p, 0, all, n.readers, relu));
    assert_true(fuse_outlives(p, 0, all, n.readers, p->logits));
    assert_true(fuse_outlives(p, 0, cut, n.readers, relu));   /* read after the slice */
    assert_true(fuse_outlives(p, cut, all, n.readers, relu)); /* made before it */
    assert_true(fuse_outlives(p, 0, cut, n.readers, conv));   /* its backward ops read it */
    assert_false(fuse_outlives(p, 0, p->nfwd, used, conv));   /* in a plan for evaluation nobody does */
    for (int i = 0; i < all; i++)
        if (p->ops[i].out >= 0 && n.readers[p->ops[i].out] == 0)
            assert_true(fuse_outlives(p, 0, all, n.readers, p->ops[i].out));
    end(&n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_relu_takes_its_batch_norm_along),
        cmocka_unit_test(the_later_of_two_batch_norms_takes_the_sum_along),
        cmocka_unit_test(a_gradient_that_two_ops_read_is_stored),
        cmocka_unit_test(what_two_ops_read_is_not_taken_along),
        cmocka_unit_test(a_sum_with_itself_is_left_alone),
        cmocka_unit_test(every_op_stands_alone_where_tests_want_every_tensor),
        cmocka_unit_test(ops_on_elements_are_one_pass_where_nobody_else_reads_between_them),
        cmocka_unit_test(a_chain_has_results_of_one_type),
        cmocka_unit_test(what_outlives_a_slice_is_what_others_may_ask_for),
    };
    return cmocka_run_group_tests_name("fusing", tests, NULL, NULL);
}
