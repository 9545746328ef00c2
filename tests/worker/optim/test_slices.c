/* Which parameters are updated alike. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/base/err.h"
#include "worker/model/model.h"
#include "worker/optim/update.h"
#include "worker/program/program.h"

/* Every parameter's decay by its slice. */
static void without_bn_decay_vectors_are_out_of_the_decay_and_matrices_in(void **state)
{
    (void)state;
    struct program *p;
    struct err e;
    struct model_options o = {.arch = "resnet18", .classes = 10, .channels = 3, .image_size = 32, .std = {1, 1, 1, 1}};
    assert_int_equal(model_build(&p, &o, &e), 0);
    for (int all = 0; all < 2; all++) {
        struct optimizer sgd = {.rule = UPDATE_SGD, .weight_decay = 0.25, .decay_vectors = all};
        int vectors = 0;
        assert_int_equal(optimizer_slice(&sgd, p, &e), 0);
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
    program_destroy(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_bn_decay_vectors_are_out_of_the_decay_and_matrices_in),
    };
    return cmocka_run_group_tests_name("slices of the optimizer", tests, NULL, NULL);
}
