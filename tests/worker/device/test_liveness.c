/* Placing buffers: random lives, checked pair by pair. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/err.h"
#include "worker/device/liveness.h"

enum { ALIGN = 64, N_MAX = 60, STEPS = 40 };

static uint32_t state = 1;

static unsigned draw(unsigned n)
{
    state = state * 1664525u + 1013904223u;
    return (state >> 8) % n;
}

static int random_lives(struct live_buffer *v)
{
    const int n = 1 + (int)draw(N_MAX);
    for (int i = 0; i < n; i++) {
        const int first = (int)draw(STEPS);
        v[i] = (struct live_buffer){.bytes = draw(10) ? 1 + draw(5000) : 0,
                                    .first = first,
                                    .last = first + (int)draw((unsigned)(STEPS - first)),
                                    .keep = draw(12) == 0};
    }
    return n;
}

static bool together(const struct live_buffer *a, const struct live_buffer *b)
{
    return a->keep || b->keep || (a->first <= b->last && b->first <= a->last);
}

static size_t up(size_t n)
{
    return (n + ALIGN - 1) / ALIGN * ALIGN;
}

static void check(const struct live_buffer *v, int n, size_t total)
{
    size_t naive = 0, peak = 0;
    for (int i = 0; i < n; i++) {
        naive += up(v[i].bytes);
        assert_int_equal(0, v[i].offset % ALIGN);
        assert_true(v[i].offset + v[i].bytes <= total);
        for (int k = 0; k < i; k++)
            if (together(&v[i], &v[k]) && v[i].bytes && v[k].bytes && v[i].offset < v[k].offset + v[k].bytes &&
                v[k].offset < v[i].offset + v[i].bytes)
                fail_msg("buffers %d and %d live at the same time and overlap", k, i);
    }
    for (int s = 0; s < STEPS; s++) {
        size_t alive = 0;
        for (int i = 0; i < n; i++)
            alive += v[i].keep || (v[i].first <= s && s <= v[i].last) ? up(v[i].bytes) : 0;
        peak = alive > peak ? alive : peak;
    }
    assert_true(total <= naive);
    assert_true(total >= peak);
}

static void buffers_that_live_together_do_not_overlap(void **unused)
{
    struct live_buffer v[N_MAX];
    size_t total;
    for (int k = 0; k < 2000; k++) {
        const int n = random_lives(v);
        assert_int_equal(0, liveness_place(v, n, ALIGN, &total, NULL));
        check(v, n, total);
    }
}

static void one_after_the_other_share_a_place(void **unused)
{
    struct live_buffer v[] = {{.bytes = 100, .first = 0, .last = 1},
                              {.bytes = 300, .first = 2, .last = 3},
                              {.bytes = 200, .first = 4, .last = 9}};
    size_t total;
    assert_int_equal(0, liveness_place(v, 3, ALIGN, &total, NULL));
    assert_int_equal(320, total);
    v[0].keep = true;
    assert_int_equal(0, liveness_place(v, 3, ALIGN, &total, NULL));
    assert_int_equal(320 + 128, total);
}

static void nothing_needs_nothing(void **unused)
{
    size_t total = 1;
    assert_int_equal(0, liveness_place(NULL, 0, ALIGN, &total, NULL));
    assert_int_equal(0, total);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buffers_that_live_together_do_not_overlap),
        cmocka_unit_test(one_after_the_other_share_a_place),
        cmocka_unit_test(nothing_needs_nothing),
    };
    return cmocka_run_group_tests_name("liveness", tests, NULL, NULL);
}
