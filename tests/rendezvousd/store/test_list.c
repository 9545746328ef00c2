/* Lists against the plainest model: an array of numbers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "rendezvousd/store/list.h"
#include <stdlib.h>
#include <string.h>

enum { MODEL_MAX = 4096 };

static uint64_t rng = 1;

static size_t draw(size_t below)
{
    rng = rng * 6364136223846793005u + 1442695040888963407u;
    return (size_t)(rng >> 33) % below;
}

struct model {
    int v[MODEL_MAX];
    size_t n;
};

static void insert(struct model *m, size_t at, int v)
{
    memmove(&m->v[at + 1], &m->v[at], (m->n - at) * sizeof m->v[0]);
    m->v[at] = v;
    m->n++;
}

static void erase(struct model *m, size_t at)
{
    m->n--;
    memmove(&m->v[at], &m->v[at + 1], (m->n - at) * sizeof m->v[0]);
}

static size_t remove_equal(struct model *m, int v, int64_t count)
{
    size_t most = count == 0 ? m->n : (size_t)llabs(count), removed = 0;
    for (size_t k = m->n; count < 0 && k-- > 0 && removed < most;)
        if (m->v[k] == v) {
            erase(m, k);
            removed++;
        }
    for (size_t k = 0; count >= 0 && k < m->n && removed < most;)
        if (m->v[k] == v) {
            erase(m, k);
            removed++;
        } else {
            k++;
        }
    return removed;
}

static void step(struct list *l, struct model *m)
{
    int v = (int)draw(5);
    bool front = draw(2);
    size_t at;
    switch (draw(m->n > 300 ? 7 : 9)) {
    case 0:
    case 1:
        if (m->n) {
            struct item *it = list_pop(l, front);
            assert_memory_equal(it->p, &m->v[front ? 0 : m->n - 1], sizeof v);
            free(it);
            erase(m, front ? 0 : m->n - 1);
        } else {
            assert_null(list_pop(l, front));
        }
        return;
    case 2:
        at = draw(m->n + 1);
        assert_int_equal(list_insert(l, at, &v, sizeof v), 0);
        insert(m, at, v);
        return;
    case 3:
        if (m->n && (at = draw(m->n), true)) {
            assert_int_equal(list_set(l, at, &v, sizeof v), 0);
            m->v[at] = v;
        }
        return;
    case 4: {
        int64_t count = (int64_t)draw(7) - 3;
        assert_int_equal(list_remove(l, &v, sizeof v, count), remove_equal(m, v, count));
        return;
    }
    case 5:
        if (m->n > 200) {
            size_t first = draw(m->n), n = draw(m->n - first + 1);
            list_keep(l, first, n);
            memmove(m->v, &m->v[first], n * sizeof m->v[0]);
            m->n = n;
        }
        return;
    default:
        assert_int_equal(list_push(l, front, &v, sizeof v), 0);
        insert(m, front ? 0 : m->n, v);
    }
}

static void lists_do_what_an_array_does(void **state)
{
    static struct model m;
    struct list l = {0};
    (void)state;
    for (int i = 0; i < 50000; i++) {
        step(&l, &m);
        assert_int_equal(l.n, m.n);
        for (size_t k = 0; k < m.n && i % 50 == 0; k++)
            assert_memory_equal(list_at(&l, k)->p, &m.v[k], sizeof m.v[k]);
    }
    list_keep(&l, 0, 0);
    assert_int_equal(l.bytes, l.cap * sizeof *l.ring);
    list_free(&l);
    assert_int_equal(l.bytes, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(lists_do_what_an_array_does)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
