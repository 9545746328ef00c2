/* Ranks, places and groups: over all small worlds, and by an example that is written out. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdbool.h>
#include <string.h>

#include "common/base/err.h"
#include "worker/parallel/layout.h"

enum { WORLD_MAX = 26, TENSOR_MAX = 5, STAGES_MAX = 4 };

/* Calls check for every layout there is up to these sizes. */
static void each_layout(void (*check)(const struct layout *))
{
    for (int world = 1; world <= WORLD_MAX; world++)
        for (int tensor = 1; tensor <= TENSOR_MAX; tensor++)
            for (int stages = 1; stages <= STAGES_MAX; stages++) {
                struct layout l;
                struct err e;
                int rc = layout_plan(&l, world, tensor, stages, world % 4, &e);
                if (world < tensor * stages)
                    assert_int_equal(rc, ERR_USAGE);
                else
                    check(&l);
            }
}

static void check_places(const struct layout *l)
{
    bool taken[WORLD_MAX] = {false};
    const int members = layout_members(l);
    assert_in_range(l->world - members, 0, l->tensor * l->stages - 1); /* spares make no replica */
    for (int stage = 0; stage < l->stages; stage++)
        for (int d = 0; d < l->data; d++)
            for (int t = 0; t < l->tensor; t++) {
                const struct layout_place p = {stage, d, t};
                const int rank = layout_rank(l, p);
                assert_in_range(rank, 0, members - 1);
                assert_int_equal(rank, (stage * l->data + d) * l->tensor + t);
                assert_false(taken[rank]);
                taken[rank] = true;
                const struct layout_place q = layout_place(l, rank);
                assert_memory_equal(&p, &q, sizeof p);
            }
    for (int rank = 0; rank < l->world; rank++)
        assert_int_equal(layout_is_spare(l, rank), rank >= members);
}

static void every_rank_has_a_place_of_its_own(void **state)
{
    (void)state;
    each_layout(check_places);
}

/* Who is together is said by places alone. */
static bool together(const struct layout *l, enum layout_group g, int a, int b)
{
    const struct layout_place p = layout_place(l, a), q = layout_place(l, b);
    const bool stage = p.stage == q.stage, data = p.data == q.data, tensor = p.tensor == q.tensor;
    const int last = l->stages - 1;
    const bool ends = (p.stage == 0 || p.stage == last) && (q.stage == 0 || q.stage == last);
    const bool is[] = {[LAYOUT_ALL] = true,
                       [LAYOUT_BATCH] = stage,
                       [LAYOUT_DATA] = stage && tensor,
                       [LAYOUT_TENSOR] = stage && data,
                       [LAYOUT_STAGES] = data && tensor,
                       [LAYOUT_ENDS] = data && tensor && (stage || ends)};
    return is[g];
}

static void check_group(const struct layout *l, enum layout_group g, int rank)
{
    const struct layout_ranks r = layout_group(l, g, rank);
    bool in[WORLD_MAX] = {false};
    assert_int_equal(layout_group_rank(&r, r.index), rank);
    for (int i = 0; i < r.count; i++) {
        const int other = layout_group_rank(&r, i);
        assert_in_range(other, 0, layout_members(l) - 1);
        assert_false(in[other]);
        in[other] = true;
        const struct layout_ranks theirs = layout_group(l, g, other);
        assert_int_equal(theirs.first, r.first);
        assert_int_equal(theirs.stride, r.stride);
        assert_int_equal(theirs.count, r.count);
        assert_int_equal(theirs.index, i);
    }
    for (int other = 0; other < layout_members(l); other++)
        assert_int_equal(in[other], together(l, g, rank, other));
}

static void check_groups(const struct layout *l)
{
    for (int g = 0; g < LAYOUT_GROUPS; g++)
        for (int rank = 0; rank < layout_members(l); rank++)
            check_group(l, (enum layout_group)g, rank);
}

static void groups_partition_the_ranks_and_all_members_agree(void **state)
{
    (void)state;
    each_layout(check_groups);
}

static void check_pipeline(const struct layout *l)
{
    for (int rank = 0; rank < layout_members(l); rank++) {
        const struct layout_ranks line = layout_group(l, LAYOUT_STAGES, rank);
        const int next = line.index + 1 < line.count ? layout_group_rank(&line, line.index + 1) : -1;
        assert_int_equal(layout_neighbour(l, rank, 1), next);
        if (next >= 0)
            assert_int_equal(layout_neighbour(l, next, -1), rank);
        if (line.index == 0)
            assert_int_equal(layout_neighbour(l, rank, -1), -1);
    }
    assert_int_equal(layout_writer(l), 0);
}

static void neighbours_are_the_same_place_one_stage_on(void **state)
{
    (void)state;
    each_layout(check_pipeline);
}

static void the_picture_of_the_header_is_right(void **state)
{
    (void)state;
    static const struct {
        enum layout_group group;
        int rank, count, ranks[8];
    } known[] = {
        {LAYOUT_TENSOR, 2, 2, {2, 3}},
        {LAYOUT_DATA, 2, 2, {0, 2}},
        {LAYOUT_BATCH, 2, 4, {0, 1, 2, 3}},
        {LAYOUT_STAGES, 2, 2, {2, 6}},
        {LAYOUT_DATA, 7, 2, {5, 7}},
        {LAYOUT_BATCH, 5, 4, {4, 5, 6, 7}},
        {LAYOUT_ALL, 5, 8, {0, 1, 2, 3, 4, 5, 6, 7}},
    };
    struct layout l;
    assert_int_equal(layout_plan(&l, 9, 2, 2, 1, NULL), 0);
    assert_int_equal(l.data, 2);
    assert_int_equal(l.zero, 1);
    assert_true(layout_is_spare(&l, 8));
    for (size_t k = 0; k < sizeof known / sizeof *known; k++) {
        const struct layout_ranks r = layout_group(&l, known[k].group, known[k].rank);
        assert_int_equal(r.count, known[k].count);
        for (int i = 0; i < r.count; i++)
            assert_int_equal(layout_group_rank(&r, i), known[k].ranks[i]);
    }
}

/* --- second owners */

static int node_of(const struct layout *l, int rank)
{
    return rank / ((l->world + l->nodes - 1) / l->nodes);
}

/* Parts of the group whose two owners lie on one node. */
static int close_ones(const struct layout *l, const struct layout_ranks *g, int distance)
{
    int n = 0;
    for (int i = 0; i < g->count; i++)
        n += node_of(l, layout_group_rank(g, i)) == node_of(l, layout_group_rank(g, (i + distance) % g->count));
    return n;
}

static void check_seconds(const struct layout *l)
{
    static const enum layout_group groups[] = {LAYOUT_BATCH, LAYOUT_DATA};
    struct layout with = *l;
    with.seconds = true;
    for (with.nodes = 1; with.nodes <= 5; with.nodes++)
        for (int rank = 0; rank < layout_members(l); rank++)
            for (int k = 0; k < 2; k++) {
                const struct layout_ranks g = layout_group(&with, groups[k], rank);
                const int distance = layout_second_distance(&with, &g);
                assert_int_equal(layout_second_distance(l, &g), 0);
                assert_in_range(distance, g.count > 1,
                                g.count > 1 ? g.count - 1 : 0); /* another rank, if there is one */
                for (int other = 1; other < g.count; other++)
                    assert_true(close_ones(&with, &g, distance) <= close_ones(&with, &g, other));
            }
}

static void a_second_owner_is_another_rank_on_another_node_where_there_is_one(void **state)
{
    (void)state;
    each_layout(check_seconds);
    struct layout l;
    assert_int_equal(layout_plan(&l, 8, 1, 1, 1, NULL), 0);
    l.seconds = true;
    l.nodes = 2;
    const struct layout_ranks batch = layout_group(&l, LAYOUT_BATCH, 3);
    assert_int_equal(layout_second_distance(&l, &batch), 4);
    assert_int_equal(close_ones(&l, &batch, 4), 0);
    assert_int_equal(layout_plan(&l, 8, 2, 1, 1, NULL), 0);
    l.seconds = true;
    l.nodes = 2;
    const struct layout_ranks data = layout_group(&l, LAYOUT_DATA, 3);
    assert_int_equal(layout_second_distance(&l, &data), 2);
}

static void a_world_without_a_replica_is_refused_in_a_sentence(void **state)
{
    (void)state;
    struct layout l = {.data = 7};
    struct err e;
    assert_int_equal(layout_plan(&l, 3, 2, 2, 0, &e), ERR_USAGE);
    assert_string_equal(e.text,
                        "3 ranks cannot hold a model over 2 stages of tensor groups of 2: that takes at least 4");
    assert_int_equal(layout_plan(&l, 1, 3, 1, 0, &e), ERR_USAGE);
    assert_string_equal(e.text, "1 rank cannot hold a model over 1 stage of tensor groups of 3: that takes at least 3");
    assert_int_equal(layout_plan(&l, 4, 0, 1, 0, &e), ERR_USAGE);
    assert_int_equal(layout_plan(&l, 1, 1 << 30, 1 << 30, 0, &e), ERR_USAGE);
    assert_int_equal(layout_plan(&l, 4, 1, 1, 4, &e), ERR_USAGE);
    assert_string_equal(e.text, "level 4 of ZeRO: expected 0, 1, 2 or 3");
    assert_int_equal(layout_plan(&l, 4, 1, 1, -1, &e), ERR_USAGE);
    assert_int_equal(l.data, 7);
}

static void parts_cover_and_differ_by_one_at_most(void **state)
{
    (void)state;
    for (size_t n = 0; n <= 40; n++)
        for (int parts = 1; parts <= 9; parts++) {
            size_t at = 0;
            for (int i = 0; i < parts; i++) {
                const struct layout_part p = layout_part(n, parts, i);
                assert_int_equal(p.first, at);
                assert_int_equal(p.n, (n + (size_t)parts - 1 - (size_t)i) / (size_t)parts);
                at += p.n;
            }
            assert_int_equal(at, n);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_second_owner_is_another_rank_on_another_node_where_there_is_one),
        cmocka_unit_test(every_rank_has_a_place_of_its_own),
        cmocka_unit_test(groups_partition_the_ranks_and_all_members_agree),
        cmocka_unit_test(neighbours_are_the_same_place_one_stage_on),
        cmocka_unit_test(the_picture_of_the_header_is_right),
        cmocka_unit_test(a_world_without_a_replica_is_refused_in_a_sentence),
        cmocka_unit_test(parts_cover_and_differ_by_one_at_most),
    };
    return cmocka_run_group_tests_name("layout", tests, NULL, NULL);
}
