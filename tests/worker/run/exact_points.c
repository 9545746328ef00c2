#include "tests/worker/run/exact_points.h"

#include <stdio.h>

static const int sizes[AXES] = {6, 4, 2, 4, 4, 4, 2, 6, 2, 2, 3, 3, 2};
static const int worlds[] = {1, 2, 3, 4, 6, 8}, tensors[] = {1, 2, 3, 4}, stages[] = {1, 2, 4};
enum { VALUES_MAX = 6, CANDIDATES = 400 };

int point_world(const struct point *p)
{
    return worlds[p->at[WORLD]];
}

int point_tensor(const struct point *p)
{
    return tensors[p->at[TENSOR]];
}

int point_parts(const struct point *p)
{
    return p->at[PARTS] + 1;
}

struct pipeline point_pipeline(const struct point *p)
{
    const enum pipeline_kind kind = (enum pipeline_kind)p->at[SCHEDULE];
    return (struct pipeline){kind, stages[p->at[STAGES]], point_parts(p), kind == PIPELINE_INTERLEAVED ? 2 : 1};
}

bool point_own_statistics(const struct point *p)
{
    return !p->at[SYNC];
}

static bool goes_together(const struct point *p)
{
    const struct pipeline line = point_pipeline(p);
    const int w = point_world(p) / line.stages, t = point_tensor(p);
    if (point_world(p) % line.stages || pipeline_check(&line, NULL) < 0)
        return false;
    if (line.stages == 1 && (p->at[SCHEDULE] || p->at[RECOMPUTE]))
        return false;
    return w > 0 && w % t == 0 && (t > 1 || p->at[SPLIT] == 0) && (p->at[HALF] == FULL || point_own_statistics(p)) &&
           (!point_own_statistics(p) || EXACT_BATCH % (w * point_parts(p)) == 0);
}

void point_describe(const struct point *p, char *out, size_t cap)
{
    static const char *const halves[] = {"fp64", "bf16 O1", "bf16 O2", "fp16 O2"}, *const rules[] = {
                                                                                       "sgd",  "nesterov", "caffe2",
                                                                                       "lars", "adam",     "adamw"};
    static const char *const kinds[] = {PIPELINE_KINDS(CHOICE_NAME)};
    char line[64] = "";
    if (p->at[STAGES])
        snprintf(line, sizeof line, ", %d stages, %s%s", point_pipeline(p).stages, kinds[p->at[SCHEDULE]],
                 p->at[RECOMPUTE] ? ", recomputing" : "");
    snprintf(out, cap, "%d ranks, tensor %d over %s, zero %d, %d parts, %s, %s statistics, %s, %s of losses%s%s",
             point_world(p), point_tensor(p), p->at[SPLIT] ? "features" : "classes", p->at[ZERO], point_parts(p),
             halves[p->at[HALF]], p->at[SYNC] ? "common" : "own", rules[p->at[RULE]], p->at[LOSS] ? "sum" : "mean",
             p->at[SMOOTH] ? ", smoothed" : "", line);
}

static uint64_t draw(uint64_t *x)
{
    *x += 0x9e3779b97f4a7c15u;
    uint64_t z = *x;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

struct point point_drawn(uint64_t *x)
{
    struct point p;
    do
        for (int a = 0; a < AXES; a++)
            p.at[a] = (int)(draw(x) % (uint64_t)sizes[a]);
    while (!goes_together(&p));
    return p;
}

static bool had[AXES][VALUES_MAX][AXES][VALUES_MAX];

static int new_pairs(const struct point *p, bool take)
{
    int n = 0;
    for (int a = 0; a < AXES; a++)
        for (int b = a + 1; b < AXES; b++) {
            bool *seen = &had[a][p->at[a]][b][p->at[b]];
            n += !*seen;
            *seen = *seen || take;
        }
    return n;
}

struct point point_next(uint64_t *x)
{
    struct point best = point_drawn(x);
    for (int i = 1; i < CANDIDATES; i++) {
        const struct point p = point_drawn(x);
        if (new_pairs(&p, false) > new_pairs(&best, false))
            best = p;
    }
    (void)new_pairs(&best, true);
    return best;
}

struct point point_staged(uint64_t *x, int zero)
{
    struct point p;
    do
        p = point_drawn(x);
    while (p.at[STAGES] == 0 || p.at[ZERO] != zero || point_world(&p) == point_pipeline(&p).stages);
    return p;
}

/* Does a point of all there are have this pair of values? */
static bool may_be_had(int a, int i, int b, int k)
{
    struct point p = {0};
    for (;;) {
        int axis = 0;
        if (p.at[a] == i && p.at[b] == k && goes_together(&p))
            return true;
        while (axis < AXES && ++p.at[axis] == sizes[axis])
            p.at[axis++] = 0;
        if (axis == AXES)
            return false;
    }
}

int point_pairs_left(void)
{
    int n = 0;
    for (int a = 0; a < AXES; a++)
        for (int b = a + 1; b < AXES; b++)
            for (int i = 0; i < sizes[a]; i++)
                for (int k = 0; k < sizes[b]; k++)
                    n += !had[a][i][b][k] && may_be_had(a, i, b, k);
    return n;
}
