/* Models in parts: where they may be cut, and what the parts are. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "worker/model/model.h"
#include "worker/program/program.h"
#include "worker/program/stages.h"

static struct program *model(const char *arch, int ranks, enum split_kind kind, int index)
{
    struct program *p;
    struct err e;
    const struct model_options o = {
        .arch = arch, .classes = 1001, .input = input_pictures(3, 64, 64, NULL, NULL), .split = {kind, ranks, index}};
    if (model_build(&p, &o, &e) < 0)
        fail_msg("%s", e.text);
    return p;
}

static struct program *gpt(const char *arch, enum split_kind kind, int ranks, int index)
{
    struct program *p;
    struct err e;
    const struct model_options o = {.arch = arch, .input = input_tokens(64, 0), .split = {kind, ranks, index}};
    if (model_build(&p, &o, &e) < 0)
        fail_msg("%s", e.text);
    return p;
}

static struct program *stage_of(const struct program *whole, const int *cuts, int parts, int stages, int stage)
{
    struct program *p;
    struct err e;
    if (stages_program(&p, whole, cuts, parts, stages, stage, &e) < 0)
        fail_msg("%s", e.text);
    return p;
}

static double cost_of(const struct program *p, int first, int end)
{
    double sum = 0;
    for (int i = first; i < end; i++)
        sum += stages_cost(p, i);
    return sum;
}

/* --- */

static void parts_are_all_of_the_model_once(void **state)
{
    (void)state;
    struct program *p = model("resnet50", 1, SPLIT_NONE, 0);
    int cuts[7];
    assert_int_equal(stages_cut(p, 8, cuts, NULL), 0);
    int ops = 0, back = 0;
    size_t trained = 0, stats = 0;
    for (int s = 0; s < 4; s++) {
        struct program *g = stage_of(p, cuts, 8, 4, s);
        assert_int_equal(g->nchunks, 2);
        ops += g->nfwd;
        back += g->nops - g->nfwd;
        trained += g->n_train;
        stats += g->n_stats;
        for (int i = 0; i < g->nparams; i++) {
            const struct param *q = &p->params[program_find_param(p, g->params[i].name)];
            assert_int_equal(q->count, g->params[i].count);
            assert_true(param_initial(q, 7, 0) == param_initial(&g->params[i], 7, 0));
        }
        program_destroy(g);
    }
    assert_int_equal(ops, p->nfwd);
    assert_int_equal(back, p->nops - p->nfwd);
    assert_int_equal(trained, p->n_train);
    assert_int_equal(stats, p->n_stats);
    program_destroy(p);
}

/* What one part makes the next one reads, under the same name; ops of the parts lie side by side. */
static void neighbours_agree_on_what_travels(void **state)
{
    (void)state;
    struct program *p = model("resnet18", 1, SPLIT_NONE, 0), *g[3];
    int cuts[5];
    assert_int_equal(stages_cut(p, 6, cuts, NULL), 0);
    for (int s = 0; s < 3; s++)
        g[s] = stage_of(p, cuts, 6, 3, s);
    for (int part = 0; part < 6; part++) {
        const struct program *a = g[part % 3], *b = g[(part + 1) % 3];
        const struct program_chunk *from = &a->chunks[part / 3], *to = &b->chunks[(part + 1) / 3];
        assert_int_equal(from->in < 0, part == 0);
        assert_int_equal(from->out < 0, part == 5);
        assert_true(from->end > from->first && from->end_back > from->first_back);
        for (int i = from->first_back; i < from->end_back; i++)
            assert_true(a->ops[i].fwd < 0 || (a->ops[i].fwd >= from->first && a->ops[i].fwd < from->end));
        if (part == 5)
            break;
        assert_string_equal(a->tensors[from->out].name, b->tensors[to->in].name);
        assert_string_equal(a->tensors[from->d_out].name, b->tensors[to->d_in].name);
        assert_int_equal(a->tensors[from->out].c, b->tensors[to->in].c);
    }
    for (int s = 0; s < 3; s++)
        program_destroy(g[s]);
    program_destroy(p);
}

/* The dearest part is no dearer than that of any other cut into two or three. */
static void parts_cost_about_the_same(void **state)
{
    (void)state;
    struct program *p = model("resnet18", 1, SPLIT_NONE, 0);
    int places[256], cut[2];
    const int n = stages_places(p, places);
    double best[2] = {1e300, 1e300};
    for (int i = 0; i < n; i++)
        for (int j = i; j < n; j++) {
            double most = cost_of(p, 0, places[i]);
            most = cost_of(p, places[i], places[j]) > most ? cost_of(p, places[i], places[j]) : most;
            most = cost_of(p, places[j], p->nfwd) > most ? cost_of(p, places[j], p->nfwd) : most;
            best[i < j] = most < best[i < j] ? most : best[i < j];
        }
    for (int parts = 2; parts <= 3; parts++) {
        assert_int_equal(stages_cut(p, parts, cut, NULL), 0);
        const int last = cut[parts - 2];
        double most = cost_of(p, 0, cut[0]);
        most = cost_of(p, cut[0], last) > most ? cost_of(p, cut[0], last) : most;
        most = cost_of(p, last, p->nfwd) > most ? cost_of(p, last, p->nfwd) : most;
        assert_true(most == best[parts - 2]);
    }
    program_destroy(p);
}

/* Ranks of a tensor group have uneven parts of the last layer, and the same stages. */
static void a_tensor_group_cuts_alike(void **state)
{
    (void)state;
    for (int kind = SPLIT_CLASSES; kind <= SPLIT_FEATURES; kind++) {
        int cuts[3][3];
        for (int t = 0; t < 3; t++) {
            struct program *p = model("resnet18", 3, (enum split_kind)kind, t);
            assert_int_equal(stages_cut(p, 4, cuts[t], NULL), 0);
            program_destroy(stage_of(p, cuts[t], 4, 4, 3));
            program_destroy(p);
        }
        assert_memory_equal(cuts[0], cuts[1], sizeof cuts[0]);
        assert_memory_equal(cuts[0], cuts[2], sizeof cuts[0]);
    }
}

/* The parts of 25 heads over four ranks differ in size, and so do those of four heads of keys, and of a vocabulary,
 * over three. An operation costs the same on all ranks: no model can be cut in different places. */
static void ranks_with_more_heads_cut_alike(void **state)
{
    (void)state;
    static const char *const archs[] = {"gpt2_xl", "tinyllama"};
    for (int k = 0; k < 2; k++) {
        struct program *first = gpt(archs[k], k ? SPLIT_CLASSES : SPLIT_NONE, 4 - k, 0);
        int cuts[2][5];
        assert_int_equal(stages_cut(first, 6, cuts[0], NULL), 0);
        for (int t = 1; t < 4 - k; t++) {
            struct program *p = gpt(archs[k], k ? SPLIT_CLASSES : SPLIT_NONE, 4 - k, t);
            for (int i = 0; i < first->nfwd; i++)
                assert_true(stages_cost(p, i) == stages_cost(first, i));
            assert_int_equal(stages_cut(p, 6, cuts[1], NULL), 0);
            assert_memory_equal(cuts[0], cuts[1], sizeof cuts[0]);
            program_destroy(p);
        }
        program_destroy(first);
    }
}

static void cuts_have_names(void **state)
{
    (void)state;
    struct program *p = model("resnet18", 1, SPLIT_NONE, 0);
    int cuts[3];
    struct err e;
    assert_int_equal(stages_cut_at(p, "layer2,layer3.1,fc", 4, cuts, &e), 0);
    assert_string_equal(p->tensors[p->ops[cuts[0]].out].name, "layer2.0.conv1");
    assert_string_equal(p->tensors[p->ops[cuts[1]].out].name, "layer3.1.conv1");
    assert_string_equal(p->tensors[p->ops[cuts[2]].out].name, "fc");
    program_destroy(p);
}

static void impossible_cuts_are_refused(void **state)
{
    (void)state;
    struct program *p = model("resnet18", 1, SPLIT_NONE, 0);
    int cuts[STAGES_PARTS_MAX];
    static const struct {
        const char *names;
        int parts;
        const char *says;
    } cases[] = {{"layer9", 2, "has no layer 'layer9'"},
                 {"layer2.0.bn2", 2, "cannot be cut before 'layer2.0.bn2', where 2 tensors are open"},
                 {"layer3,layer2", 3, "'layer2' does not come after"},
                 {"layer2", 3, "3 parts take 2 names"},
                 {"layer2,layer3", 2, "2 parts take 1 names"},
                 {"input", 2, "cannot be cut before 'input'"},
                 {"", 2, "an empty name"},
                 {"layer2,", 3, "an empty name"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct err e = {0};
        assert_true(stages_cut_at(p, cases[i].names, cases[i].parts, cuts, &e) < 0);
        if (!strstr(e.text, cases[i].says))
            fail_msg("%s: %s", cases[i].names, e.text);
    }
    struct err e;
    assert_true(stages_cut(p, 64, cuts, &e) < 0);
    assert_non_null(strstr(e.text, "has places for"));
    program_destroy(p);
}

/* The first and the last stage have a copy each of a table that a head shares with the embedding, and only of that. */
static void a_tied_head_ties_the_first_stage_and_the_last(void **state)
{
    (void)state;
    for (int tied = 0; tied < 2; tied++) {
        struct program *p = program_create("text", (struct input){.rows = INPUT_TOKENS, .length = 4, .vocabulary = 9});
        const int table = program_embed(p, "table", program_tokens(p), 6);
        struct err e = {0};
        int cuts[2], body = program_linear_each(p, "a", table, 6, true);
        body = program_linear_each(p, "b", body, 6, true);
        program_head(p, "head", body, tied ? table : -1, false);
        assert_int_equal(program_differentiate(p, &e), 0);
        assert_int_equal(stages_cut(p, 3, cuts, &e), 0);
        for (int k = 0; k < 3; k++) {
            struct program *stage;
            assert_int_equal(stages_program(&stage, p, cuts, 3, 3, k, &e), 0);
            const int q = program_find_param(stage, "table.weight");
            assert_true((q >= 0) == (k == 0 || (tied && k == 2)));
            for (int i = 0; i < stage->nparams; i++)
                assert_true(stage->params[i].tied == (tied && i == q));
            program_destroy(stage);
        }
        program_destroy(p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_are_all_of_the_model_once),
        cmocka_unit_test(neighbours_agree_on_what_travels),
        cmocka_unit_test(parts_cost_about_the_same),
        cmocka_unit_test(a_tensor_group_cuts_alike),
        cmocka_unit_test(ranks_with_more_heads_cut_alike),
        cmocka_unit_test(cuts_have_names),
        cmocka_unit_test(impossible_cuts_are_refused),
        cmocka_unit_test(a_tied_head_ties_the_first_stage_and_the_last),
    };
    return cmocka_run_group_tests_name("models in parts", tests, NULL, NULL);
}
