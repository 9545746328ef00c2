/* Who can give what a lost rank had: over small layouts and every choice of ranks that are lost. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <stdbool.h>

#include "common/base/err.h"
#include "worker/state/holders.h"

enum { RANKS_MAX = 8 };

/* Does a rank that is here have part `part` of what the group cuts, or (-1) all of what it does not? */
static bool is_had(const struct layout *l, const struct layout_ranks *g, int part, const bool *here)
{
    const int distance = layout_second_distance(l, g);
    for (int i = 0; i < g->count; i++)
        if (here[layout_group_rank(g, i)] && (part < 0 || i == part || (distance && i == (part + distance) % g->count)))
            return true;
    return false;
}

static bool all_is_had(const struct layout *l, const bool *here)
{
    static const enum layout_group groups[] = {LAYOUT_BATCH, LAYOUT_DATA};
    for (int rank = 0; rank < layout_members(l); rank++)
        for (int k = 0; k < 2; k++) {
            const struct layout_ranks g = layout_group(l, groups[k], rank);
            const bool cut = l->zero > 0 && g.count > 1;
            if ((k == 0 || l->tensor > 1) && !is_had(l, &g, cut ? g.index : -1, here))
                return false;
        }
    return true;
}

/* Those that are named as holders have it. */
static void check_named(const struct layout *l, const bool *here)
{
    for (int rank = 0; rank < layout_members(l); rank++) {
        const struct layout_ranks g = layout_group(l, LAYOUT_BATCH, rank);
        const int distance = layout_second_distance(l, &g), whole = holders_of_whole(&g, here),
                  part = holders_of_part(&g, distance, g.index, here);
        assert_int_equal(whole >= 0, is_had(l, &g, -1, here));
        assert_int_equal(part >= 0, is_had(l, &g, g.index, here));
        assert_true(whole < 0 || here[whole]);
        assert_true(part < 0 ||
                    (here[part] &&
                     (part == rank || (distance && part == layout_group_rank(&g, (g.index + distance) % g.count)))));
    }
}

static void what_no_rank_has_is_lost_and_all_else_is_had(void **state)
{
    (void)state;
    static const int shapes[][3] = {{1, 1, 1}, {2, 1, 1}, {4, 1, 1}, {7, 1, 1}, {4, 2, 1},
                                    {8, 2, 1}, {4, 1, 2}, {8, 2, 2}, {6, 1, 3}, {2, 2, 1}};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (int kind = 0; kind <= 6; kind++) {
            struct layout l;
            struct err e;
            assert_int_equal(layout_plan(&l, shapes[s][0], shapes[s][1], shapes[s][2], kind > 3 ? kind - 3 : kind, &e),
                             0);
            l.seconds = kind > 3;
            for (unsigned lost = 0; lost < 1U << layout_members(&l); lost++) {
                bool here[RANKS_MAX];
                for (int r = 0; r < layout_members(&l); r++)
                    here[r] = !(lost >> r & 1);
                assert_int_equal(holders_check(&l, here, &e), all_is_had(&l, here) ? 0 : -ENODATA);
                check_named(&l, here);
            }
        }
}

static void one_lost_rank_is_made_good_where_parts_have_two_owners(void **state)
{
    (void)state;
    struct layout l;
    struct err e;
    assert_int_equal(layout_plan(&l, 4, 1, 1, 3, &e), 0);
    const bool one[] = {true, false, true, true}, two[] = {true, false, false, true},
               apart[] = {true, false, true, false};
    assert_int_equal(holders_check(&l, one, &e), -ENODATA);
    assert_string_equal(e.text, "rank 1 is lost, and no other rank has its part of the state");
    l.seconds = true;
    assert_int_equal(holders_check(&l, one, &e), 0);
    assert_int_equal(holders_check(&l, apart, &e), 0);
    assert_int_equal(holders_check(&l, two, &e), -ENODATA);
    assert_string_equal(e.text, "rank 1 and rank 2, which had its part of the state as well, are lost together");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_no_rank_has_is_lost_and_all_else_is_had),
        cmocka_unit_test(one_lost_rank_is_made_good_where_parts_have_two_owners),
    };
    return cmocka_run_group_tests_name("holders", tests, NULL, NULL);
}
