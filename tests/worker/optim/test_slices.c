/* Which parameters are updated alike. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "common/base/err.h"
#include "worker/model/model.h"
#include "worker/optim/update.h"
#include "worker/parallel/ownership.h"
#include "worker/program/patterns.h"
#include "worker/program/program.h"

/* Every parameter's decay by its slice. */
static void without_bn_decay_vectors_are_out_of_the_decay_and_matrices_in(void **state)
{
    (void)state;
    struct program *p;
    struct ownership own;
    struct err e;
    struct model_options o = {.arch = "resnet18", .classes = 10, .input = input_pictures(3, 32, 32, NULL, NULL)};
    assert_int_equal(model_build(&p, &o, &e), 0);
    assert_int_equal(ownership_init_alone(&own, p, &e), 0);
    for (int all = 0; all < 2; all++) {
        struct optimizer sgd = {.rule = UPDATE_SGD, .weight_decay = 0.25, .decay_vectors = all};
        int vectors = 0;
        assert_int_equal(optimizer_slice(&sgd, p, &own, &e), 0);
        for (int i = 0; i < p->nparams; i++) {
            const struct param *q = &p->params[i];
            const struct update_slice *at = sgd.slices;
            if (q->role != PARAM_TRAIN)
                continue;
            while (q->offset >= at->first + at->n)
                at++;
            assert_true(at->weight_decay == (q->ndim >= 2 || all ? 0.25 : 0));
            vectors += q->ndim < 2;
        }
        assert_int_equal(vectors, 41); /* scale and shift of 20 batch norms, and the last bias */
        optimizer_finish(&sgd);
    }
    ownership_finish(&own);
    program_destroy(p);
}

static void names_take_decay_away_and_change_rates(void **state)
{
    (void)state;
    struct program *p;
    struct ownership own;
    struct err e;
    struct model_options o = {.arch = "resnet18", .classes = 10, .input = input_pictures(3, 32, 32, NULL, NULL)};
    struct optimizer sgd = {.rule = UPDATE_SGD,
                            .weight_decay = 0.25,
                            .decay_vectors = true,
                            .no_decay = "*.bias,layer4.?.conv2.*",
                            .lr_mul = "*=0.5,layer[34].*=0.1,fc.*=10"};
    int undecayed = 0, of[3] = {0};
    assert_int_equal(model_build(&p, &o, &e), 0);
    assert_int_equal(ownership_init_alone(&own, p, &e), 0);
    assert_int_equal(optimizer_slice(&sgd, p, &own, &e), 0);
    for (int i = 0; i < p->nparams; i++) {
        const struct param *q = &p->params[i];
        int k = 0;
        if (q->role != PARAM_TRAIN)
            continue;
        while (q->offset >= sgd.slices[k].first + sgd.slices[k].n)
            k++;
        const bool last = strncmp(q->name, "fc.", 3) == 0, late = q->name[5] == '3' || q->name[5] == '4';
        const bool none = strstr(q->name, ".bias") || (strstr(q->name, "layer4.") && strstr(q->name, "conv2"));
        assert_true(sgd.slices[k].weight_decay == (none ? 0 : 0.25));
        assert_true(sgd.factors[k] == (last ? 10 : strncmp(q->name, "layer", 5) == 0 && late ? 0.1 : 0.5));
        undecayed += none;
        of[last ? 2 : sgd.factors[k] == 0.1] += 1;
    }
    assert_int_equal(undecayed, 23); /* 20 of batch norms, the last layer's, two convolutions */
    assert_int_equal(of[2], 2);
    assert_int_equal(of[1], 30);
    assert_int_equal(patterns_check_model("no-decay", "*.bias,layer5.*", p, &e), ERR_USAGE);
    assert_string_equal(e.text, "--no-decay: 'layer5.*' is the name of no parameter of resnet18 (expected names as "
                                "'conv1.weight')");
    assert_int_equal(patterns_check_model("lr-mul", sgd.lr_mul, p, &e), 0);
    optimizer_finish(&sgd);
    ownership_finish(&own);
    program_destroy(p);
}

static void wrong_patterns_are_refused(void **state)
{
    static const struct {
        const char *list;
        bool factors;
        const char *sentence;
    } wrong[] = {
        {"a,,b", false, "--o: a pattern of 0 bytes (expected 1 to 127)"},
        {"", false, "--o: a pattern of 0 bytes (expected 1 to 127)"},
        {"a=2", false, "--o: 'a=2' (expected patterns of names, with commas between them)"},
        {"a", true, "--o: 'a=' (expected PATTERN=FACTOR, a number from 0 to 1000)"},
        {"a=1,b=-1", true, "--o: 'b=-1' (expected PATTERN=FACTOR, a number from 0 to 1000)"},
        {"a=1001", true, "--o: 'a=1001' (expected PATTERN=FACTOR, a number from 0 to 1000)"},
        {"a=1x", true, "--o: 'a=1x' (expected PATTERN=FACTOR, a number from 0 to 1000)"},
    };
    struct err e;
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(patterns_check("o", wrong[i].list, wrong[i].factors, &e), ERR_USAGE);
        assert_string_equal(e.text, wrong[i].sentence);
    }
    assert_int_equal(patterns_check("o", NULL, true, &e), 0);
    assert_int_equal(patterns_check("o", "a*=1e-3,[bc]=1000,d=0", true, &e), 0);
}

/* Each element that a rank owns is in one slice, which is like its parameter; no other is in any. */
static void check_owned_slices(const struct optimizer *o, const struct program *p, const struct ownership *own)
{
    size_t in_slices = 0, owned = 0;
    for (int i = 0; i < o->nslices; i++) {
        const struct update_slice *v = &o->slices[i];
        const struct param *q = program_param_from(p, 0);
        assert_true(v->n > 0 && (i == 0 || v->first >= v[-1].first + v[-1].n));
        for (size_t x = v->first; x < v->first + v->n; x++) {
            while (q && x >= q->offset + q->count)
                q = program_param_from(p, q->offset + q->count);
            if (!q || x < q->offset)
                continue; /* padding */
            in_slices++;
            assert_true(v->weight_decay == (q->ndim >= 2 ? 0.25 : 0));
            assert_true(v->trust == (q->ndim >= 2 ? 0.5 : 0));
            assert_true(v->trust == 0 || v->first >= q->offset);
        }
    }
    for (int k = 0; k < own->nowned; k++)
        for (const struct param *q = program_param_from(p, 0); q; q = program_param_from(p, q->offset + q->count)) {
            const struct ownership_range r = ownership_clip(own, k, q->offset, q->offset + q->count);
            owned += r.end - r.first;
        }
    assert_int_equal(in_slices, owned);
}

static void slices_are_of_what_the_rank_owns(void **state)
{
    (void)state;
    struct program *p;
    struct err e;
    struct model_options m = {.arch = "convnet", .classes = 10, .input = input_pictures(1, 28, 28, NULL, NULL)};
    assert_int_equal(model_build(&p, &m, &e), 0);
    for (int world = 1; world <= 4; world++)
        for (int zero = 0; zero <= 1; zero++)
            for (int rank = 0; rank < world; rank++) {
                const struct ownership_options small = {
                    .elem_bytes = 1, .bucket_bytes = 1000, .first_bucket_bytes = 100};
                struct optimizer lars = {.rule = UPDATE_LARS, .weight_decay = 0.25, .trust = 0.5};
                struct layout l;
                struct ownership own;
                assert_int_equal(layout_plan(&l, world, 1, 1, zero, &e), 0);
                assert_int_equal(ownership_init(&own, &l, rank, p, &small, &e), 0);
                assert_int_equal(optimizer_slice(&lars, p, &own, &e), 0);
                check_owned_slices(&lars, p, &own);
                optimizer_finish(&lars);
                ownership_finish(&own);
            }
    program_destroy(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_bn_decay_vectors_are_out_of_the_decay_and_matrices_in),
        cmocka_unit_test(names_take_decay_away_and_change_rates),
        cmocka_unit_test(wrong_patterns_are_refused),
        cmocka_unit_test(slices_are_of_what_the_rank_owns),
    };
    return cmocka_run_group_tests_name("slices of the optimizer", tests, NULL, NULL);
}
