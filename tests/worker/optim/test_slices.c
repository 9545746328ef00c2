/* Which parameters are updated alike. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/base/err.h"
#include "worker/model/model.h"
#include "worker/optim/update.h"
#include "worker/parallel/ownership.h"
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
        cmocka_unit_test(slices_are_of_what_the_rank_owns),
    };
    return cmocka_run_group_tests_name("slices of the optimizer", tests, NULL, NULL);
}
