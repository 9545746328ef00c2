#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "worker/data/augment/mix.h"
#include "worker/data/loader/sampler.h"

static void order(uint64_t seed, uint64_t pass, size_t n, uint32_t *out)
{
    sampler_order(&(struct sampler){.n = n, .seed = seed, .shuffle = true}, pass, out);
}

static struct sampler make(enum sampler_kind kind, size_t n, size_t batch, int rank, int world)
{
    struct err e = {0};
    struct sampler s = {
        .kind = kind, .n = n, .batch = batch, .rank = rank, .world = world, .shuffle = kind != SAMPLER_SHARDED};
    if (sampler_check(&s, &e) < 0)
        fail_msg("%s", e.text);
    return s;
}

/* Ids that a rank gets in one epoch, in order. */
static size_t ids_of(const struct sampler *s, int64_t epoch, uint32_t *out)
{
    uint32_t *perm = malloc(s->n * sizeof *perm);
    uint64_t pass = UINT64_MAX;
    size_t n = 0;
    for (int64_t step = 0; step < sampler_steps(s); step++) {
        const size_t count = sampler_count(s, epoch, step, 0);
        assert_true(count <= sampler_rows(s));
        for (size_t i = 0; i < count; i++) {
            struct place p = sampler_place(s, epoch, step, 0, i);
            if (p.pass != pass)
                sampler_order(s, pass = p.pass, perm);
            out[n++] = perm[p.at];
        }
    }
    free(perm);
    return n;
}

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
        order(cases[i].seed, cases[i].epoch, 12, got);
        for (int k = 0; k < 12; k++)
            if (got[k] != cases[i].want[k])
                fail_msg("case %zu place %d: %u, expected %u", i, k, got[k], cases[i].want[k]);
    }
    order(123456789012345, 90, 1000, got);
    static const uint32_t head[] = {15, 668, 567, 218, 951}, tail[] = {655, 669, 390, 87, 129};
    assert_memory_equal(got, head, sizeof head);
    assert_memory_equal(got + 995, tail, sizeof tail);
}

static void a_permutation_holds_every_number_once(void **state)
{
    enum { N = 5003 };
    uint32_t *p = malloc(N * sizeof *p);
    bool seen[N] = {false};
    order(3, 4, N, p);
    int moved = 0;
    for (uint32_t i = 0; i < N; i++) {
        assert_true(p[i] < N && !seen[p[i]]);
        seen[p[i]] = true;
        moved += p[i] != i;
    }
    assert_true(moved > N - 20);
    sampler_order(&(struct sampler){.n = N, .seed = 3}, 4, p);
    for (uint32_t i = 0; i < N; i++)
        assert_int_equal(p[i], i);
    free(p);
}

/* Tar files of 1, 3, 2, 1 and 4 samples, two mixed at a time; their order and that of their samples is the pass's. */
static void tar_files_come_a_few_at_a_time(void **state)
{
    static const uint32_t ends[] = {1, 4, 6, 7, 11};
    enum { N = 11, SETS = 5, PASSES = 50 };
    int firsts = 0, whole = 0;
    for (uint64_t pass = 0; pass < PASSES; pass++) {
        struct sampler s = {.n = N, .seed = 9, .shuffle = true, .mixed = 2, .sets = SETS, .set_ends = ends};
        uint32_t p[N], again[N];
        unsigned seen = 0, open = 0, left[SETS] = {1, 3, 2, 1, 4};
        sampler_order(&s, pass, p);
        sampler_order(&s, pass, again);
        assert_memory_equal(p, again, sizeof p);
        int places = 2, done = 0;
        for (int i = 0; i < N; i++) {
            int set = 0;
            while (ends[set] <= p[i])
                set++;
            assert_true(p[i] < N && !(seen & 1u << p[i]));
            seen |= 1u << p[i];
            if (!(open & 1u << set))
                assert_true(places-- > 0);
            open |= 1u << set;
            if (--left[set] == 0 && ++done % 2 == 0)
                places = 2;
        }
        firsts |= 1 << p[0];
        s.mixed = SETS;
        sampler_order(&s, pass, p);
        whole |= 1 << p[0];
    }
    assert_true(firsts == (1 << N) - 1 && whole == (1 << N) - 1);
}

static void every_world_takes_each_sample_of_an_epoch_once_and_in_one_order(void **state)
{
    static const int worlds[] = {1, 2, 3, 5};
    enum { N = 103, B = 16 };
    for (size_t i = 0; i < sizeof worlds / sizeof *worlds; i++) {
        size_t at = 0;
        for (int64_t step = 0; step < 7; step++)
            for (int rank = 0; rank < worlds[i]; rank++) {
                const struct sampler s = make(SAMPLER_GLOBAL, N, B, rank, worlds[i]);
                assert_int_equal(sampler_steps(&s), 7);
                for (size_t k = 0; k < sampler_count(&s, 2, step, 0); k++, at++) {
                    const struct place p = sampler_place(&s, 2, step, 0, k);
                    if (p.pass != 2 || p.at != at)
                        fail_msg("world %d step %d rank %d: pass %d place %u, expected pass 2 place %zu", worlds[i],
                                 (int)step, rank, (int)p.pass, p.at, at);
                }
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
        const struct sampler s = make(SAMPLER_GLOBAL, 18, 8, rank, 5);
        const size_t count = sampler_count(&s, 0, 2, 0);
        empty += count == 0;
        rest += (int)count;
    }
    assert_int_equal(rest, 2);
    assert_int_equal(empty, 3);
}

/* A part is the same samples for any number of ranks, and no part of a full step is without one of each rank. */
static void parts_are_cut_before_ranks(void **state)
{
    for (int kind = SAMPLER_GLOBAL; kind <= SAMPLER_DISTRIBUTED; kind++)
        for (int parts = 1; parts <= 40; parts++)
            for (int world = 1; world <= 7; world += 2)
                for (int64_t step = 0; step < 3; step++) {
                    struct sampler one = make((enum sampler_kind)kind, 105, 42, 0, 1);
                    one.parts = parts;
                    int last = -1;
                    size_t all = 0;
                    for (int part = 0; part < parts; part++) {
                        size_t n = 0;
                        int owner[105] = {0};
                        for (int rank = 0; rank < world; rank++) {
                            struct sampler s = make((enum sampler_kind)kind, 105, 42, rank, world);
                            s.parts = parts;
                            assert_true(sampler_parts(&s) <= parts);
                            const size_t count = part < sampler_parts(&s) ? sampler_count(&s, 0, step, part) : 0;
                            assert_true(count <= sampler_part_rows(&s));
                            assert_true(count > 0 || part >= sampler_parts(&s) - 1 || step == 2);
                            for (size_t i = 0; i < count; i++)
                                owner[sampler_place(&s, 0, step, part, i).at]++;
                            n += count;
                        }
                        for (int i = 0, before = last; i < 105; i++) {
                            assert_true(owner[i] == 0 || (owner[i] == 1 && i > before));
                            last = owner[i] ? i : last;
                        }
                        if (sampler_parts(&one) == parts && 42 / parts >= world && part < sampler_parts(&one))
                            assert_int_equal(n, sampler_count(&one, 0, step, part));
                        all += n;
                    }
                    assert_int_equal(all, step == 2 ? 21 : 42);
                }
}

static void steps_and_shares_round_up(void **state)
{
    struct sampler s = make(SAMPLER_GLOBAL, 1, 64, 0, 1);
    assert_int_equal(sampler_steps(&s), 1);
    s.n = 128;
    assert_int_equal(sampler_steps(&s), 2);
    s.n = 129;
    assert_int_equal(sampler_steps(&s), 3);
    assert_int_equal(sampler_share(64, 3), 22);
    assert_int_equal(sampler_share(64, 64), 1);
    assert_int_equal(sampler_share(2, 3), 1);
}

/* 10 samples, 3 ranks: 12 places, the first two of the order come twice, and a rank takes every third. */
static void distributed_pads_with_the_head_and_ranks_take_turns(void **state)
{
    uint32_t perm[10], got[3][8];
    for (int64_t epoch = 0; epoch < 3; epoch++) {
        order(0, (uint64_t)epoch, 10, perm);
        for (int rank = 0; rank < 3; rank++) {
            const struct sampler s = make(SAMPLER_DISTRIBUTED, 10, 6, rank, 3);
            assert_int_equal(ids_of(&s, epoch, got[rank]), 4);
            for (int i = 0; i < 4; i++)
                assert_int_equal(got[rank][i], perm[(rank + 3 * i) % 10]);
        }
    }
}

/* Position p of a pass shows picture floor(p / 3) of its order, for the (p mod 3)-th time; ranks take turns. */
static void repetitions_take_the_first_of_an_order(void **state)
{
    for (int kind = SAMPLER_GLOBAL; kind <= SAMPLER_DISTRIBUTED; kind++)
        for (int rank = 0; rank < 2; rank++) {
            struct sampler s = make((enum sampler_kind)kind, 11, 4, rank, 2);
            struct err e;
            s.repetitions = 3;
            assert_int_equal(sampler_check(&s, &e), 0);
            assert_int_equal(sampler_images(&s), kind == SAMPLER_GLOBAL ? 11 : 12);
            const struct place p = sampler_place(&s, 2, 1, 0, 1); /* of step 1, positions 4 to 7 of pass 2 */
            const uint32_t at = kind == SAMPLER_GLOBAL ? (rank ? 7 : 5) : (rank ? 7 : 6);
            assert_int_equal(p.pass, 2);
            assert_int_equal(p.at, at / 3);
            assert_int_equal(p.repetition, at % 3);
        }
}

static void few_partners_are_others(void **state)
{
    for (int world = 1; world <= 4; world++)
        for (int parts = 1; parts <= 3; parts++)
            for (int rank = 0; rank < world; rank++)
                for (size_t group = 2; group <= 40; group++) {
                    struct sampler s = make(SAMPLER_GLOBAL, 100, 36, rank, world);
                    struct err e;
                    s.parts = parts;
                    s.repetitions = 3;
                    s.mix_group = group;
                    assert_int_equal(sampler_check(&s, &e), 0);
                    for (int64_t step = 0; step < sampler_steps(&s); step++)
                        for (int part = 0; part < sampler_parts(&s); part++) {
                            const size_t n = sampler_count(&s, 0, step, part),
                                         first = sampler_position(&s, 0, step, part, 0);
                            size_t others = 0;
                            for (size_t i = 0; i < n; i++) {
                                const size_t p = mix_partner(group, 3, first + i, sampler_length(&s, step));
                                others += p < first || p >= first + n;
                            }
                            if (others > sampler_part_others(&s))
                                fail_msg("rank %d of %d, groups of %zu: %zu others, room for %zu", rank, world, group,
                                         others, sampler_part_others(&s));
                        }
                }
}

static void distributed_drops_the_rest_when_asked_to(void **state)
{
    bool seen[10] = {false};
    for (int rank = 0; rank < 3; rank++) {
        uint32_t got[8];
        struct sampler s = make(SAMPLER_DISTRIBUTED, 10, 6, rank, 3);
        s.drop_last = true;
        assert_int_equal(ids_of(&s, 1, got), 3);
        for (int i = 0; i < 3; i++) {
            assert_false(seen[got[i]]);
            seen[got[i]] = true;
        }
    }
}

static void distributed_pads_a_set_smaller_than_the_world(void **state)
{
    for (int rank = 0; rank < 5; rank++) {
        uint32_t perm[2], got[4];
        const struct sampler s = make(SAMPLER_DISTRIBUTED, 2, 2, rank, 5);
        order(0, 0, 2, perm);
        assert_int_equal(ids_of(&s, 0, got), 1);
        assert_int_equal(got[0], perm[rank % 2]);
    }
}

/* Batches that the ranks do not divide change the cut, not what a rank gets. */
static void distributed_ranks_get_the_same_under_any_batch(void **state)
{
    for (size_t batch = 1; batch <= 23; batch++)
        for (int rank = 0; rank < 4; rank++) {
            uint32_t perm[23], got[40];
            const struct sampler s = make(SAMPLER_DISTRIBUTED, 23, batch, rank, 4);
            order(0, 5, 23, perm);
            assert_int_equal(ids_of(&s, 5, got), 6);
            for (int i = 0; i < 6; i++)
                assert_int_equal(got[i], perm[(rank + 4 * i) % 23]);
        }
}

static void a_shard_skips_the_others_records_and_begins_again(void **state)
{
    static const uint32_t want[3][9] = {
        {0, 3, 6, 9, 0, 3, 6, 9, 0}, {1, 4, 7, 1, 4, 7, 1, 4, 7}, {2, 5, 8, 2, 5, 8, 2, 5, 8}};
    for (int rank = 0; rank < 3; rank++) {
        uint32_t got[9];
        const struct sampler s = make(SAMPLER_SHARDED, 10, 3, rank, 3);
        assert_int_equal(sampler_steps(&s), 3); /* of 10 records, whole batches */
        for (int64_t epoch = 0; epoch < 3; epoch++)
            assert_int_equal(ids_of(&s, epoch, got + 3 * epoch), 3);
        assert_memory_equal(got, want[rank], sizeof want[rank]);
    }
}

/* Two nodes of two ranks each: a node's reader serves its ranks in turn. */
static void the_ranks_of_a_node_share_its_shard(void **state)
{
    static const uint32_t want[4][4] = {{0, 2, 8, 10}, {4, 6, 12, 14}, {1, 3, 9, 11}, {5, 7, 13, 15}};
    for (int rank = 0; rank < 4; rank++) {
        uint32_t got[4];
        struct sampler s = make(SAMPLER_SHARDED, 16, 8, rank, 4);
        s.shards = 2;
        assert_int_equal(sampler_rows(&s), 2);
        assert_int_equal(ids_of(&s, 0, got), 4);
        assert_memory_equal(got, want[rank], sizeof got);
    }
}

static void shuffled_shards_stay_apart(void **state)
{
    int owner[10];
    memset(owner, -1, sizeof owner);
    for (int rank = 0; rank < 3; rank++) {
        struct sampler s = make(SAMPLER_SHARDED, 10, 3, rank, 3);
        s.shuffle = true;
        for (int64_t epoch = 0; epoch < 9; epoch++) {
            uint32_t got[3];
            assert_int_equal(ids_of(&s, epoch, got), 3);
            for (int i = 0; i < 3; i++) {
                assert_true(owner[got[i]] == -1 || owner[got[i]] == rank);
                owner[got[i]] = rank;
            }
        }
    }
}

static void an_epoch_is_rounded_down_to_whole_batches_but_has_one(void **state)
{
    static const struct {
        size_t size, batch;
        int64_t steps;
    } cases[] = {{0, 32, 32}, {1000, 32, 31}, {992, 32, 31}, {1023, 32, 31}, {31, 32, 1},
                 {1, 32, 1},  {32, 32, 1},    {63, 32, 1},   {64, 32, 2},    {1500000, 32, 46875}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct sampler s = make(SAMPLER_GLOBAL, 1000, cases[i].batch, 0, 1);
        s.epoch_size = cases[i].size;
        assert_int_equal(sampler_steps(&s), cases[i].steps);
    }
}

/* Epochs of 8 over a set of 20: every 20 in a row are a pass, wherever epochs end, for any number of ranks. */
static void passes_go_on_through_epochs_of_another_size(void **state)
{
    for (int world = 1; world <= 3; world++) {
        int seen[3][20] = {{0}};
        for (int64_t epoch = 0; epoch < 7; epoch++)
            for (int rank = 0; rank < world; rank++) {
                uint32_t perm[20];
                struct sampler s = make(SAMPLER_GLOBAL, 20, 4, rank, world);
                s.epoch_size = 11;
                assert_int_equal(sampler_steps(&s), 2);
                for (int64_t step = 0; step < 2; step++)
                    for (size_t i = 0; i < sampler_count(&s, epoch, step, 0); i++) {
                        const struct place p = sampler_place(&s, epoch, step, 0, i);
                        sampler_order(&s, p.pass, perm);
                        seen[p.pass][perm[p.at]]++;
                    }
            }
        for (int i = 0; i < 20; i++) {
            assert_int_equal(seen[0][i], 1);
            assert_int_equal(seen[1][i], 1);
        }
    }
}

/* Else a rank would have a step more, in which it has nothing. */
static void a_batch_is_no_larger_than_what_there_is(void **state)
{
    static const struct {
        struct sampler s;
        size_t batch;
        int64_t steps;
    } cases[] = {
        {{.n = 5, .batch = 100, .world = 4}, 5, 1},
        {{.n = 5, .batch = 4, .world = 4}, 4, 2},
        {{.n = 5, .batch = 100, .world = 4, .epoch_size = 3}, 5, 1},
        {{.n = 5, .batch = 100, .world = 4, .epoch_size = 40}, 40, 1},
        {{.n = 5, .batch = 12, .world = 4, .epoch_size = 40}, 12, 3},
        {{.kind = SAMPLER_DISTRIBUTED, .n = 5, .batch = 100, .world = 4}, 8, 1},
        {{.kind = SAMPLER_DISTRIBUTED, .n = 5, .batch = 100, .world = 4, .drop_last = true}, 4, 1},
        {{.kind = SAMPLER_SHARDED, .n = 5, .batch = 100, .world = 4, .shards = 2}, 4, 1},
        {{.kind = SAMPLER_SHARDED, .n = 5, .batch = 6, .world = 4, .shards = 2, .epoch_size = 13}, 6, 2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct sampler s = cases[i].s;
        struct err e = {0};
        sampler_clip(&s);
        if (sampler_check(&s, &e) < 0)
            fail_msg("case %zu: %s", i, e.text);
        if (s.batch != cases[i].batch || sampler_steps(&s) != cases[i].steps)
            fail_msg("case %zu: batches of %zu, %lld steps", i, s.batch, (long long)sampler_steps(&s));
    }
}

static void what_cannot_be_sampled_is_refused(void **state)
{
    static const struct {
        struct sampler s;
        const char *word;
    } cases[] = {
        {{.kind = SAMPLER_SHARDED, .n = 9, .batch = 9, .world = 3, .shards = 2}, "spread evenly"},
        {{.kind = SAMPLER_SHARDED, .n = 9, .batch = 8, .world = 3}, "no multiple of the 3 shards"},
        {{.kind = SAMPLER_SHARDED, .n = 2, .batch = 3, .world = 3}, "without any"},
        {{.kind = SAMPLER_DISTRIBUTED, .n = 2, .batch = 3, .world = 3, .drop_last = true}, "leave nothing"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct sampler s = cases[i].s;
        struct err e = {0};
        assert_int_equal(sampler_check(&s, &e), ERR_USAGE);
        if (!strstr(e.text, cases[i].word))
            fail_msg("'%s' does not say '%s'", e.text, cases[i].word);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(permutations_have_their_golden_values),
        cmocka_unit_test(a_permutation_holds_every_number_once),
        cmocka_unit_test(every_world_takes_each_sample_of_an_epoch_once_and_in_one_order),
        cmocka_unit_test(a_rank_of_a_short_last_batch_may_have_nothing),
        cmocka_unit_test(parts_are_cut_before_ranks),
        cmocka_unit_test(tar_files_come_a_few_at_a_time),
        cmocka_unit_test(steps_and_shares_round_up),
        cmocka_unit_test(distributed_pads_with_the_head_and_ranks_take_turns),
        cmocka_unit_test(repetitions_take_the_first_of_an_order),
        cmocka_unit_test(few_partners_are_others),
        cmocka_unit_test(distributed_drops_the_rest_when_asked_to),
        cmocka_unit_test(distributed_pads_a_set_smaller_than_the_world),
        cmocka_unit_test(distributed_ranks_get_the_same_under_any_batch),
        cmocka_unit_test(a_shard_skips_the_others_records_and_begins_again),
        cmocka_unit_test(the_ranks_of_a_node_share_its_shard),
        cmocka_unit_test(shuffled_shards_stay_apart),
        cmocka_unit_test(an_epoch_is_rounded_down_to_whole_batches_but_has_one),
        cmocka_unit_test(passes_go_on_through_epochs_of_another_size),
        cmocka_unit_test(a_batch_is_no_larger_than_what_there_is),
        cmocka_unit_test(what_cannot_be_sampled_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
