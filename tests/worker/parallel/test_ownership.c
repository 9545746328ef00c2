/* Who owns what: over layouts, models with parameters that are split into uneven parts, and sizes of buckets. What is
 * checked against is a map of each rank's arena: which element of the whole model lies where. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "tests/worker/parallel/arena_map.h"
#include "worker/parallel/ownership.h"

enum { RANKS_MAX = 12 };

struct rank {
    struct arena_map map;
    struct ownership own;
};

struct world {
    struct layout l;
    struct rank ranks[RANKS_MAX];
};

static void open_world(struct world *w, const struct layout *l, const struct arena_model *m, size_t bucket,
                       size_t first)
{
    const struct ownership_options o = {.elem_bytes = 4, .bucket_bytes = bucket * 4, .first_bucket_bytes = first * 4};
    struct err e;
    w->l = *l;
    for (int i = 0; i < layout_members(l); i++) {
        struct rank *r = &w->ranks[i];
        arena_map_init(&r->map, m, l, i);
        assert_int_equal(ownership_init(&r->own, l, i, &r->map.program, &o, &e), 0);
    }
}

static void close_world(struct world *w)
{
    for (int i = 0; i < layout_members(&w->l); i++) {
        ownership_finish(&w->ranks[i].own);
        arena_map_finish(&w->ranks[i].map);
    }
}

static void each_world(void (*check)(const struct world *, const struct arena_model *))
{
    static const struct arena_model models[] = {
        {.nparams = 4,
         .params = {{5, 7, true, false}, {5, 1, true, false}, {40, 9, false, false}, {16, 1, false, false}}},
        {.nparams = 5,
         .params = {{3, 30, false, false},
                    {11, 13, true, false},
                    {64, 10, false, false},
                    {7, 3, true, false},
                    {2, 1, false, false}}},
        {.nparams = 1, .params = {{33, 31, false, false}}},
        {.nparams = 2, .params = {{3, 1, false, false}, {4, 1, false, false}}},
        {.nparams = 3, .params = {{9, 31, true, true}, {6, 2, true, true}, {21, 8, false, false}}},
        {.nparams = 3,
         .params = {{2, 90, true, false}, {2, 1, true, false}, {50, 5, false, false}}}, /* no row for the third rank */
    };
    static const size_t buckets[][2] = {{64, 16}, {100, 30}, {100000, 1000}};
    static const int shapes[][3] = {{1, 1, 1}, {2, 1, 1}, {3, 1, 1}, {5, 1, 1}, {8, 1, 1}, {2, 2, 1},
                                    {4, 2, 1}, {7, 3, 1}, {9, 3, 1}, {8, 2, 2}, {4, 1, 2}, {12, 3, 2}};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (int kind = 0; kind <= 6; kind++) /* levels of ZeRO; from 4 on with second owners */
            for (size_t m = 0; m < sizeof models / sizeof *models; m++)
                for (size_t b = 0; b < sizeof buckets / sizeof *buckets; b++) {
                    struct layout l;
                    struct world w;
                    const int zero = kind > 3 ? kind - 3 : kind;
                    assert_int_equal(layout_plan(&l, shapes[s][0], shapes[s][1], shapes[s][2], zero, NULL), 0);
                    l.seconds = kind > 3;
                    l.nodes = 1 + (int)m % 3;
                    open_world(&w, &l, &models[m], buckets[b][0], buckets[b][1]);
                    check(&w, &models[m]);
                    close_world(&w);
                }
}

static void check_pieces(const struct world *w, const struct arena_model *m)
{
    (void)m;
    for (int i = 0; i < layout_members(&w->l); i++) {
        const struct ownership *own = &w->ranks[i].own;
        size_t at = 0;
        for (int k = 0; k < own->npieces; k++) {
            const struct ownership_piece *p = &own->pieces[k];
            const int ranks = p->ranks;
            assert_int_equal(p->first, at);
            assert_true(p->end > p->first);
            assert_true(p->part == 0 || w->l.zero > 0);
            assert_int_equal(p->part % OWNERSHIP_ALIGN, 0);
            if (p->part)
                assert_int_equal(p->part * (size_t)ranks, p->end - p->first);
            else if (w->l.zero > 0 && ranks > 1) /* the rest of a run, and no more */
                assert_true(p->end - p->first < (size_t)ranks * OWNERSHIP_ALIGN);
            at = p->end;
        }
        assert_int_equal(at, own->n_train);
    }
}

static void pieces_follow_one_another_and_cover_the_arena(void **state)
{
    (void)state;
    each_world(check_pieces);
}

/* The n-th piece of a group; NULL: there are fewer. */
static const struct ownership_piece *nth_piece(const struct ownership *own, enum layout_group g, int n)
{
    for (int k = 0; k < own->npieces; k++)
        if (own->pieces[k].group == g && n-- == 0)
            return &own->pieces[k];
    return NULL;
}

/* Is piece n of a group the same on both ranks, element by element? */
static bool holds_alike(const struct rank *r, const struct rank *like, enum layout_group g, int n)
{
    const struct ownership_piece *a = nth_piece(&r->own, g, n), *b = nth_piece(&like->own, g, n);
    return a && a->part == b->part && a->end - a->first == b->end - b->first &&
           memcmp(r->map.id + a->first, like->map.id + b->first, (a->end - a->first) * sizeof *r->map.id) == 0;
}

static bool holds(const struct rank *r, int64_t id)
{
    for (size_t i = 0; i < r->own.n_train; i++)
        if (r->map.id[i] == id)
            return true;
    return false;
}

/* A piece is summed over those ranks that hold its elements, all of them and no others; they find the same piece. */
static void check_sums(const struct world *w, const struct arena_model *m)
{
    (void)m;
    for (int i = 0; i < layout_members(&w->l); i++) {
        const struct rank *r = &w->ranks[i];
        int nth[LAYOUT_GROUPS] = {0};
        for (int k = 0; k < r->own.npieces; k++) {
            const struct ownership_piece *p = &r->own.pieces[k];
            const struct layout_ranks g = ownership_group(&r->own, p->group);
            const int64_t id = r->map.id[p->first];
            bool in[RANKS_MAX] = {false};
            for (int j = 0; j < g.count; j++) {
                in[layout_group_rank(&g, j)] = true;
                assert_true(holds_alike(&w->ranks[layout_group_rank(&g, j)], r, p->group, nth[p->group]));
            }
            nth[p->group]++;
            for (int j = 0; j < layout_members(&w->l); j++)
                assert_int_equal(in[j], holds(&w->ranks[j], id));
        }
    }
}

static void a_piece_is_summed_over_the_ranks_that_hold_it(void **state)
{
    (void)state;
    each_world(check_sums);
}

/* How many ranks save and update each element of the model, stage by stage. */
static void check_owners(const struct world *w, const struct arena_model *m)
{
    const int64_t n = arena_model_elements(m), stages = w->l.stages;
    int *saved = calloc((size_t)(n * stages), sizeof *saved), *updated = calloc((size_t)(n * stages), sizeof *updated),
        *held = calloc((size_t)(n * stages), sizeof *held);
    for (int i = 0; i < layout_members(&w->l); i++) {
        const struct ownership *own = &w->ranks[i].own;
        const int64_t *id = w->ranks[i].map.id;
        for (size_t x = 0; x < own->n_train; x++)
            if (id[x] >= 0)
                held[id[x]]++;
        for (int k = 0; k < own->npieces; k++) {
            const struct ownership_range r = own->pieces[k].saved;
            for (size_t x = r.first; x < r.end; x++)
                if (id[x] >= 0)
                    saved[id[x]]++;
        }
        for (int k = 0; k < own->nowned; k++)
            for (size_t x = own->owned[k].first; x < own->owned[k].end; x++)
                if (id[x] >= 0)
                    updated[id[x]]++;
    }
    for (int64_t x = 0; x < n * stages; x++) {
        assert_int_equal(saved[x], 1);
        assert_true(updated[x] == held[x] || (w->l.zero > 0 && updated[x] == (w->l.seconds ? 2 : 1)));
    }
    free(saved);
    free(updated);
    free(held);
}

static void each_element_is_saved_once_and_updated_by_its_owners_or_by_all(void **state)
{
    (void)state;
    each_world(check_owners);
}

/* Kept arenas have no holes, and are about 1 / ranks of the whole. */
static void check_kept(const struct world *w, const struct arena_model *m)
{
    (void)m;
    for (int i = 0; i < layout_members(&w->l); i++) {
        const struct ownership *own = &w->ranks[i].own;
        size_t kept = 0, most = 0;
        for (int k = 0; k < own->nowned; k++) {
            assert_int_equal(own->owned[k].kept, kept);
            assert_true(k == 0 || own->owned[k].first > own->owned[k - 1].end); /* neighbours are one */
            kept += own->owned[k].end - own->owned[k].first;
        }
        for (int k = 0; k < own->npieces; k++) {
            const size_t n = own->pieces[k].end - own->pieces[k].first;
            const bool two = own->pieces[k].distance > 0;
            most += own->pieces[k].part ? own->pieces[k].part * (two ? 2 : 1) : n;
        }
        assert_int_equal(kept, most);
        const enum ownership_arena arenas[] = {OWNERSHIP_MOMENTS, OWNERSHIP_GRADIENTS, OWNERSHIP_PARAMS,
                                               OWNERSHIP_AVERAGES};
        const int levels[] = {1, 2, 3, 3};
        for (int a = 0; a < 4; a++) {
            assert_int_equal(ownership_is_cut(own, arenas[a]), w->l.zero >= levels[a]);
            assert_int_equal(ownership_elements(own, arenas[a]), w->l.zero >= levels[a] ? kept : own->n_train);
        }
    }
}

static void what_is_kept_has_no_holes(void **state)
{
    (void)state;
    each_world(check_kept);
}

/* What is updated of a piece and the gaps are all of it, and nothing twice. */
static void check_gaps(const struct world *w, const struct arena_model *m)
{
    (void)m;
    for (int i = 0; i < layout_members(&w->l); i++) {
        const struct ownership *own = &w->ranks[i].own;
        for (int k = 0; k < own->npieces; k++) {
            struct ownership_range gaps[OWNERSHIP_GAPS];
            size_t foreign = 0;
            int n;
            ownership_gaps(&own->pieces[k], gaps, &n);
            for (size_t x = own->pieces[k].first; x < own->pieces[k].end; x++) {
                int times = 0;
                for (int j = 0; j < n; j++)
                    times += x >= gaps[j].first && x < gaps[j].end;
                foreign += (size_t)times;
                for (int j = 0; j < own->nowned; j++)
                    times += x >= own->owned[j].first && x < own->owned[j].end;
                assert_int_equal(times, 1);
            }
            assert_int_equal(foreign, ownership_foreign(&own->pieces[k]));
        }
    }
}

static void gaps_are_what_is_not_updated(void **state)
{
    (void)state;
    each_world(check_gaps);
}

static void check_clips(const struct world *w, const struct arena_model *m)
{
    (void)m;
    for (int i = 0; i < layout_members(&w->l); i++) {
        const struct ownership *own = &w->ranks[i].own;
        for (int q = 0; q < w->ranks[i].map.program.nparams; q++) {
            const struct param *p = &w->ranks[i].map.program.params[q];
            for (int k = 0; k < own->nowned; k++) {
                const struct ownership_range *r = &own->owned[k],
                                             c = ownership_clip(own, k, p->offset, p->offset + p->count);
                for (size_t x = p->offset; x < p->offset + p->count; x++)
                    assert_int_equal(x >= c.first && x < c.end, x >= r->first && x < r->end);
                if (c.first < c.end)
                    assert_int_equal(c.kept - r->kept, c.first - r->first);
            }
        }
    }
}

static void a_parameter_is_clipped_to_what_is_owned(void **state)
{
    (void)state;
    each_world(check_clips);
}

/* --- without ZeRO: the buckets */

static void buckets_begin_and_end_small(void **state)
{
    (void)state;
    static const size_t trains[] = {1, 15, 16, 17, 31, 32, 33, 100, 1000, 11689512};
    for (size_t i = 0; i < sizeof trains / sizeof *trains; i++) {
        struct param one = {.role = PARAM_TRAIN, .count = trains[i]};
        const struct program p = {.params = &one, .nparams = 1, .n_train = trains[i]};
        const size_t small = trains[i] > 1000 ? 262144 : 16, most = small * 25;
        const struct ownership_options o = {.elem_bytes = 4, .bucket_bytes = most * 4, .first_bucket_bytes = small * 4};
        struct layout l;
        struct ownership own;
        assert_int_equal(layout_plan(&l, 3, 1, 1, 0, NULL), 0);
        assert_int_equal(ownership_init(&own, &l, 1, &p, &o, NULL), 0);
        assert_int_equal(own.nowned, 1);
        for (int k = 0; k < own.npieces; k++) {
            const size_t n = own.pieces[k].end - own.pieces[k].first;
            assert_true(n <= (k == 0 || k == own.npieces - 1 ? small : most));
            assert_int_equal(own.pieces[k].group, LAYOUT_BATCH);
        }
        ownership_finish(&own);
    }
}

static void buckets_that_hold_no_element_are_refused(void **state)
{
    (void)state;
    struct param one = {.role = PARAM_TRAIN, .count = 100};
    const struct program p = {.params = &one, .nparams = 1, .n_train = 100};
    struct layout l;
    struct ownership own;
    struct err e;
    assert_int_equal(layout_plan(&l, 2, 1, 1, 0, NULL), 0);
    const struct ownership_options o = {.elem_bytes = 8, .bucket_bytes = 400, .first_bucket_bytes = 4};
    assert_int_equal(ownership_init(&own, &l, 0, &p, &o, &e), -EINVAL);
    assert_string_equal(e.text, "buckets of 4 and 400 bytes: expected at least 8, one element");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_follow_one_another_and_cover_the_arena),
        cmocka_unit_test(a_piece_is_summed_over_the_ranks_that_hold_it),
        cmocka_unit_test(each_element_is_saved_once_and_updated_by_its_owners_or_by_all),
        cmocka_unit_test(what_is_kept_has_no_holes),
        cmocka_unit_test(gaps_are_what_is_not_updated),
        cmocka_unit_test(a_parameter_is_clipped_to_what_is_owned),
        cmocka_unit_test(buckets_begin_and_end_small),
        cmocka_unit_test(buckets_that_hold_no_element_are_refused),
    };
    return cmocka_run_group_tests_name("ownership", tests, NULL, NULL);
}
