/* Transfers between placements, done by hand on small matrices: the value stays what it was, and the way back is the
 * transpose of the way there. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "worker/parallel/layout.h"
#include "worker/parallel/placement.h"

enum { SIDE = 8, RANKS = 4, DIMS = 2 };

/* What a rank holds: n[0] x n[1] values. */
struct matrix {
    size_t n[DIMS];
    double v[SIDE][SIDE];
};

static double random_value(void)
{
    static uint32_t s = 1;
    s = s * 1664525u + 1013904223u;
    return (double)(s >> 8) / (1 << 20) - 8;
}

static struct matrix random_matrix(size_t rows, size_t columns)
{
    struct matrix m = {.n = {rows, columns}};
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < columns; j++)
            m.v[i][j] = random_value();
    return m;
}

/* Columns or rows [first, first + n) of m. */
static struct matrix cut(const struct matrix *m, int dim, size_t first, size_t n)
{
    struct matrix r = *m;
    memset(r.v, 0, sizeof r.v);
    r.n[dim] = n;
    for (size_t i = 0; i < r.n[0]; i++)
        for (size_t j = 0; j < r.n[1]; j++)
            r.v[i][j] = m->v[i + (dim == 0 ? first : 0)][j + (dim == 1 ? first : 0)];
    return r;
}

static void put(struct matrix *to, const struct matrix *part, int dim, size_t first)
{
    for (size_t i = 0; i < part->n[0]; i++)
        for (size_t j = 0; j < part->n[1]; j++)
            to->v[i + (dim == 0 ? first : 0)][j + (dim == 1 ? first : 0)] = part->v[i][j];
}

static struct matrix part_of(const struct matrix *m, int dim, int ranks, int r)
{
    const struct layout_part p = layout_part(m->n[dim], ranks, r);
    return cut(m, dim, p.first, p.n);
}

static struct matrix side_by_side(const struct matrix *parts, int ranks, int dim)
{
    struct matrix all = {.n = {parts[0].n[0], parts[0].n[1]}};
    all.n[dim] = 0;
    for (int r = 0; r < ranks; r++) {
        put(&all, &parts[r], dim, all.n[dim]);
        all.n[dim] += parts[r].n[dim];
    }
    return all;
}

static struct matrix sum(const struct matrix *terms, int ranks)
{
    struct matrix all = terms[0];
    for (int r = 1; r < ranks; r++)
        for (size_t i = 0; i < all.n[0]; i++)
            for (size_t j = 0; j < all.n[1]; j++)
                all.v[i][j] += terms[r].v[i][j];
    return all;
}

static struct matrix first_or_zero(const struct matrix *m, int r)
{
    struct matrix z = *m;
    if (r > 0)
        memset(z.v, 0, sizeof z.v);
    return z;
}

/* Zeros around rank r's part. */
static struct matrix padded(const struct matrix *parts, int ranks, int dim, int r)
{
    struct matrix all = side_by_side(parts, ranks, dim);
    size_t first = 0;
    for (int i = 0; i < r; i++)
        first += parts[i].n[dim];
    memset(all.v, 0, sizeof all.v);
    put(&all, &parts[r], dim, first);
    return all;
}

/* What rank r has after the transfer; x: what all have before. */
static struct matrix transferred(struct transfer t, const struct matrix *x, int ranks, int r)
{
    struct matrix all;
    switch (t.kind) {
    case TRANSFER_SLICE:
        return part_of(&x[r], t.to_dim, ranks, r);
    case TRANSFER_FIRST:
        return first_or_zero(&x[r], r);
    case TRANSFER_PAD:
        return padded(x, ranks, t.from_dim, r);
    case TRANSFER_ALL_GATHER:
        return side_by_side(x, ranks, t.from_dim);
    case TRANSFER_ALL_REDUCE:
        return sum(x, ranks);
    case TRANSFER_REDUCE_SCATTER:
        all = sum(x, ranks);
        return part_of(&all, t.to_dim, ranks, r);
    case TRANSFER_ALL_TO_ALL:
        all = side_by_side(x, ranks, t.from_dim);
        return part_of(&all, t.to_dim, ranks, r);
    case TRANSFER_NONE:
    case TRANSFER_KINDS:
        break;
    }
    return x[r];
}

static void transfer_all(struct transfer t, struct matrix *x, int ranks)
{
    struct matrix y[RANKS];
    for (int r = 0; r < ranks; r++)
        y[r] = transferred(t, x, ranks, r);
    memcpy(x, y, (size_t)ranks * sizeof *x);
}

/* v, placed. */
static void place(struct placement p, const struct matrix *v, struct matrix *x, int ranks)
{
    struct matrix others = {.n = {v->n[0], v->n[1]}};
    for (int r = 0; r < ranks; r++)
        x[r] = p.kind == PLACE_SPLIT ? part_of(v, p.dim, ranks, r) : *v;
    if (p.kind != PLACE_PARTIAL)
        return;
    for (int r = 1; r < ranks; r++) {
        const struct matrix terms[] = {others, x[r] = random_matrix(v->n[0], v->n[1])};
        others = sum(terms, 2);
    }
    for (size_t i = 0; i < v->n[0]; i++)
        for (size_t j = 0; j < v->n[1]; j++)
            x[0].v[i][j] = v->v[i][j] - others.v[i][j];
}

static void assert_same(const struct matrix *a, const struct matrix *b)
{
    assert_int_equal(a->n[0], b->n[0]);
    assert_int_equal(a->n[1], b->n[1]);
    for (size_t i = 0; i < a->n[0]; i++)
        for (size_t j = 0; j < a->n[1]; j++)
            assert_true(fabs(a->v[i][j] - b->v[i][j]) < 1e-9);
}

/* x is v, placed as p. */
static void assert_placed(struct placement p, const struct matrix *v, const struct matrix *x, int ranks)
{
    struct matrix all = x[0];
    if (p.kind == PLACE_SPLIT) {
        for (int r = 0; r < ranks; r++)
            assert_int_equal(x[r].n[p.dim], layout_part(v->n[p.dim], ranks, r).n);
        all = side_by_side(x, ranks, p.dim);
    } else if (p.kind == PLACE_PARTIAL) {
        all = sum(x, ranks);
    }
    assert_same(&all, v);
    for (int r = 1; r < ranks && p.kind == PLACE_WHOLE; r++)
        assert_same(&x[r], &x[0]);
}

static const struct placement every[] = {{PLACE_WHOLE, 0}, {PLACE_SPLIT, 0}, {PLACE_SPLIT, 1}, {PLACE_PARTIAL, 0}};
enum { EVERY = sizeof every / sizeof *every };

static void a_transfer_keeps_the_value(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= RANKS; ranks++)
        for (int a = 0; a < EVERY; a++)
            for (int b = 0; b < EVERY; b++) {
                const struct matrix v = random_matrix(5, 7);
                struct matrix x[RANKS];
                place(every[a], &v, x, ranks);
                transfer_all(placement_transfer(every[a], every[b]), x, ranks);
                assert_placed(every[b], &v, x, ranks);
            }
}

/* Where every copy is used for something of its own. */
static struct placement transposed(struct placement p)
{
    const enum placement_kind other[] = {
        [PLACE_WHOLE] = PLACE_PARTIAL, [PLACE_SPLIT] = PLACE_SPLIT, [PLACE_PARTIAL] = PLACE_WHOLE};
    return (struct placement){other[p.kind], p.dim};
}

static double product(const struct matrix *a, const struct matrix *b, int ranks)
{
    double all = 0;
    for (int r = 0; r < ranks; r++)
        for (size_t i = 0; i < a[r].n[0]; i++)
            for (size_t j = 0; j < a[r].n[1]; j++)
                all += a[r].v[i][j] * b[r].v[i][j];
    return all;
}

/* What ranks hold of a 5 x 7 value placed as p, with anything in it. */
static void fill(struct placement p, struct matrix *x, int ranks)
{
    for (int r = 0; r < ranks; r++) {
        size_t n[DIMS] = {5, 7};
        if (p.kind == PLACE_SPLIT)
            n[p.dim] = layout_part(n[p.dim], ranks, r).n;
        x[r] = random_matrix(n[0], n[1]);
    }
}

static void the_transfer_of_the_gradient_is_the_transpose(void **state)
{
    (void)state;
    for (int a = 0; a < EVERY; a++)
        for (int b = 0; b < EVERY; b++) {
            const struct placement_pair from = {every[a], transposed(every[a])}, to = {every[b], transposed(every[b])};
            struct matrix x[RANKS], y[RANKS], there[RANKS], back[RANKS];
            assert_true(placement_is_pair(from));
            fill(from.value, x, RANKS);
            fill(to.gradient, y, RANKS);
            memcpy(there, x, sizeof there);
            memcpy(back, y, sizeof back);
            transfer_all(placement_transfer(from.value, to.value), there, RANKS);
            transfer_all(placement_transfer_back(from, to), back, RANKS);
            assert_true(fabs(product(there, y, RANKS) - product(x, back, RANKS)) < 1e-9);
        }
}

static void the_table_of_the_header_is_right(void **state)
{
    (void)state;
    const struct placement whole = {PLACE_WHOLE, 0}, rows = {PLACE_SPLIT, 0}, terms = {PLACE_PARTIAL, 0};
    const struct placement_pair split = {rows, rows}, same = {whole, whole}, other = {whole, terms},
                                sums = {terms, whole};
    const struct {
        struct placement_pair from, to;
        enum transfer_kind there, back;
    } known[] = {
        {split, other, TRANSFER_ALL_GATHER, TRANSFER_REDUCE_SCATTER},
        {split, same, TRANSFER_ALL_GATHER, TRANSFER_SLICE},
        {same, other, TRANSFER_NONE, TRANSFER_ALL_REDUCE},
        {sums, same, TRANSFER_ALL_REDUCE, TRANSFER_NONE},
        {sums, split, TRANSFER_REDUCE_SCATTER, TRANSFER_ALL_GATHER},
        {same, split, TRANSFER_SLICE, TRANSFER_ALL_GATHER},
        {split, {{PLACE_SPLIT, 1}, {PLACE_SPLIT, 1}}, TRANSFER_ALL_TO_ALL, TRANSFER_ALL_TO_ALL},
    };
    for (size_t k = 0; k < sizeof known / sizeof *known; k++) {
        const struct transfer there = placement_transfer(known[k].from.value, known[k].to.value);
        assert_string_equal(transfer_name(there.kind), transfer_name(known[k].there));
        assert_string_equal(transfer_name(placement_transfer_back(known[k].from, known[k].to).kind),
                            transfer_name(known[k].back));
    }
}

static void a_gradient_is_placed_as_its_value_allows(void **state)
{
    (void)state;
    /* value whole, rows, columns, terms x the same of the gradient */
    static const bool good[EVERY][EVERY] = {{1, 0, 0, 1}, {0, 1, 0, 0}, {0, 0, 1, 0}, {1, 0, 0, 0}};
    for (int a = 0; a < EVERY; a++)
        for (int b = 0; b < EVERY; b++)
            assert_int_equal(placement_is_pair((struct placement_pair){every[a], every[b]}), good[a][b]);
}

/* --- two axes: ranks (d, t), parts of parts */

enum { DATA = 3, TENSOR = 2 };

struct grid {
    struct matrix x[DATA][TENSOR];
};

static void place_grid(const struct placement p[AXES], const struct matrix *v, struct grid *g)
{
    struct matrix outer[DATA];
    place(p[AXIS_DATA], v, outer, DATA);
    for (int d = 0; d < DATA; d++)
        place(p[AXIS_TENSOR], &outer[d], g->x[d], TENSOR);
}

/* Each d's value out of its tensor group, then all of it. */
static void assert_grid(const struct placement p[AXES], const struct matrix *v, const struct grid *g)
{
    struct matrix outer[DATA];
    for (int d = 0; d < DATA; d++) {
        const struct placement inner = p[AXIS_TENSOR];
        outer[d] = inner.kind == PLACE_SPLIT     ? side_by_side(g->x[d], TENSOR, inner.dim)
                   : inner.kind == PLACE_PARTIAL ? sum(g->x[d], TENSOR)
                                                 : g->x[d][0];
        assert_placed(inner, &outer[d], g->x[d], TENSOR);
    }
    assert_placed(p[AXIS_DATA], v, outer, DATA);
}

static void step_grid(struct transfer_step s, struct grid *g)
{
    struct matrix column[DATA];
    for (int d = 0; d < DATA && s.axis == AXIS_TENSOR; d++)
        transfer_all(s.transfer, g->x[d], TENSOR);
    for (int t = 0; t < TENSOR && s.axis == AXIS_DATA; t++) {
        for (int d = 0; d < DATA; d++)
            column[d] = g->x[d][t];
        transfer_all(s.transfer, column, DATA);
        for (int d = 0; d < DATA; d++)
            g->x[d][t] = column[d];
    }
}

static void steps_over_both_axes_keep_the_value(void **state)
{
    (void)state;
    for (int i = 0; i < EVERY * EVERY * EVERY * EVERY; i++) {
        const struct placement from[AXES] = {every[i % EVERY], every[i / EVERY % EVERY]};
        const struct placement to[AXES] = {every[i / (EVERY * EVERY) % EVERY], every[i / (EVERY * EVERY * EVERY)]};
        const struct matrix v = random_matrix(7, 8);
        struct transfer_step steps[TRANSFER_STEPS];
        struct grid g;
        place_grid(from, &v, &g);
        const int n = placement_steps(from, to, steps);
        assert_true(n <= TRANSFER_STEPS);
        for (int k = 0; k < n; k++) {
            assert_true(steps[k].transfer.kind != TRANSFER_NONE);
            step_grid(steps[k], &g);
        }
        assert_grid(to, &v, &g);
    }
}

static void what_is_in_place_takes_no_step(void **state)
{
    (void)state;
    struct transfer_step steps[TRANSFER_STEPS];
    for (int a = 0; a < EVERY; a++)
        for (int b = 0; b < EVERY; b++) {
            const struct placement p[AXES] = {every[a], every[b]};
            assert_int_equal(placement_steps(p, p, steps), 0);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_transfer_keeps_the_value),
        cmocka_unit_test(the_transfer_of_the_gradient_is_the_transpose),
        cmocka_unit_test(the_table_of_the_header_is_right),
        cmocka_unit_test(a_gradient_is_placed_as_its_value_allows),
        cmocka_unit_test(steps_over_both_axes_keep_the_value),
        cmocka_unit_test(what_is_in_place_takes_no_step),
    };
    return cmocka_run_group_tests_name("placement", tests, NULL, NULL);
}
