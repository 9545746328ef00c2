#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "worker/data/sampler.h"

/* Expected values from an independent Python rendering of Philox 4x64-10 and Fisher-Yates. */
static void permutations_have_their_golden_values(void **state)
{
    static const struct {
        uint64_t seed, epoch;
        uint32_t want[12];
    } cases[] = {
        {0, 0, {3, 1, 10, 8, 2, 4, 5, 6, 11, 0, 9, 7}},
        {0, 1, {2, 6, 3, 4, 0, 8, 9, 10, 5, 7, 1, 11}},
        {7, 0, {4, 9, 8, 6, 1, 3, 2, 7, 10, 0, 11, 5}},
    };
    uint32_t got[1000];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        sampler_permutation(cases[i].seed, cases[i].epoch, 1, 12, got);
        for (int k = 0; k < 12; k++)
            if (got[k] != cases[i].want[k])
                fail_msg("case %zu place %d: %u, expected %u", i, k, got[k], cases[i].want[k]);
    }
    sampler_permutation(123456789012345, 90, 1, 1000, got);
    static const uint32_t head[] = {15, 668, 567, 218, 951}, tail[] = {655, 669, 390, 87, 129};
    assert_memory_equal(got, head, sizeof head);
    assert_memory_equal(got + 995, tail, sizeof tail);
}

static void a_permutation_holds_every_number_once(void **state)
{
    enum { N = 5003 };
    uint32_t *p = malloc(N * sizeof *p);
    bool seen[N] = {false};
    sampler_permutation(3, 4, 1, N, p);
    int moved = 0;
    for (uint32_t i = 0; i < N; i++) {
        assert_true(p[i] < N && !seen[p[i]]);
        seen[p[i]] = true;
        moved += p[i] != i;
    }
    assert_true(moved > N - 20);
    sampler_permutation(3, 4, 0, N, p);
    for (uint32_t i = 0; i < N; i++)
        assert_int_equal(p[i], i);
    free(p);
}

static void every_world_takes_each_sample_of_an_epoch_once_and_in_one_order(void **state)
{
    static const int worlds[] = {1, 2, 3, 5};
    enum { N = 103, B = 16 };
    assert_int_equal(sampler_steps(N, B), 7);
    for (size_t i = 0; i < sizeof worlds / sizeof *worlds; i++) {
        size_t at = 0;
        for (int64_t step = 0; step < 7; step++)
            for (int rank = 0; rank < worlds[i]; rank++) {
                struct slice s = sampler_slice(N, B, step, rank, worlds[i]);
                if (s.first != at || s.count > sampler_share(B, worlds[i]))
                    fail_msg("world %d step %d rank %d: first %zu count %zu, expected first %zu", worlds[i], (int)step,
                             rank, s.first, s.count, at);
                at += s.count;
                if (rank == worlds[i] - 1)
                    assert_int_equal(at, step == 6 ? N : (size_t)(step + 1) * B);
            }
        assert_int_equal(at, N);
    }
}

static void a_rank_of_a_short_last_batch_may_have_nothing(void **state)
{
    int empty = 0, rest = 0;
    for (int rank = 0; rank < 5; rank++) {
        struct slice s = sampler_slice(18, 8, 2, rank, 5);
        empty += s.count == 0;
        rest += (int)s.count;
    }
    assert_int_equal(rest, 2);
    assert_int_equal(empty, 3);
}

static void steps_and_shares_round_up(void **state)
{
    assert_int_equal(sampler_steps(1, 64), 1);
    assert_int_equal(sampler_steps(128, 64), 2);
    assert_int_equal(sampler_steps(129, 64), 3);
    assert_int_equal(sampler_share(64, 3), 22);
    assert_int_equal(sampler_share(64, 64), 1);
    assert_int_equal(sampler_share(2, 3), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(permutations_have_their_golden_values),
        cmocka_unit_test(a_permutation_holds_every_number_once),
        cmocka_unit_test(every_world_takes_each_sample_of_an_epoch_once_and_in_one_order),
        cmocka_unit_test(a_rank_of_a_short_last_batch_may_have_nothing),
        cmocka_unit_test(steps_and_shares_round_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
