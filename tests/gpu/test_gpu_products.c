/* Matrix products on the GPU: every algorithm that cuBLASLt names for those of a small network is proven, in each type,
 * and the fastest taken; what was taken is taken again from a list. Lines that begin with # have their times. Skips as
 * a whole, with the device's own sentence, where there is no GPU. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "tests/must.h"
#include "tests/worker/device/cuda/tiny.h"
#include "worker/device/device.h"
#include "worker/program/program.h"

enum { WIDTH = 64, BATCH = 64 };

struct kind {
    const char *name;
    enum dtype type;
    bool tf32;
    int products; /* of different shapes, at least: a layer's three; halves: also onto a shortcut */
};

static const char *text_of(const cJSON *record, const char *key)
{
    const cJSON *v = cJSON_GetObjectItem(record, key);
    return cJSON_IsString(v) ? v->valuestring : "";
}

/* Plans a step, after another device's list if there is one. The list afterwards, malloc'ed. */
static char *plan(const struct kind *k, bool tune, const char *list)
{
    const struct device_options o = {.threads = 1, .gpu = {.tune = tune, .tf32 = k->tf32, .fused = true}};
    struct program *p;
    struct device *d;
    struct arenas at;
    struct plan *pl;
    char *ret;
    MUST(bottlenecks_build(&p, WIDTH, e));
    MUST(device_open(&d, "cuda", &o, e));
    arenas_open(&at, d, p);
    if (list)
        MUST(d->ops->choose(d, list, e));
    const struct plan_options po = {.batch = BATCH,
                                    .training = true,
                                    .compute = k->type,
                                    .params = at.params,
                                    .stats = at.stats,
                                    .reduce = at.reduce};
    MUST(d->ops->plan(d, p, &po, &pl, e));
    MUST(d->ops->choices(d, &ret, e));
    d->ops->plan_close(pl);
    arenas_close(&at, d);
    d->ops->close(d);
    program_destroy(p);
    return ret;
}

/* What stands for products in a list: a line each, the engine's JSON in it. None may be barred. */
static int products_of(const struct kind *k, const char *list, const char *state, char *out, size_t cap)
{
    cJSON *all = cJSON_Parse(list);
    const cJSON *o;
    size_t used = 0;
    int n = 0;
    cJSON_ArrayForEach(o, all)
    {
        const cJSON *engine = cJSON_GetObjectItem(o, "engine");
        if (strncmp(text_of(o, "graph"), "product", 7) != 0)
            continue;
        if (strcmp(text_of(o, "state"), state) != 0)
            fail_msg("%s: %s is %s by %s: %s", k->name, text_of(o, "graph"), text_of(o, "state"),
                     text_of(engine, "name"), text_of(o, "why"));
        print_message("# %s: %s: %.1f us by %s\n", k->name, text_of(o, "graph"),
                      cJSON_GetNumberValue(cJSON_GetObjectItem(o, "us")), text_of(engine, "name"));
        used += (size_t)snprintf(out + used, cap - used, "%s %s\n", text_of(o, "graph"), text_of(engine, "algo"));
        assert_true(used < cap);
        n++;
    }
    cJSON_Delete(all);
    return n;
}

static void every_algorithm_is_right_and_the_fastest_is_kept(void **state)
{
    static const struct kind kinds[] = {
        {"fp16", DT_F16, false, 5}, {"bf16", DT_BF16, false, 5}, {"fp32", DT_F32, false, 3}, {"tf32", DT_F32, true, 3}};
    static char before[8192], after[8192];
    (void)state;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        char *list = plan(&kinds[i], true, NULL), *again = plan(&kinds[i], true, list);
        const int n = products_of(&kinds[i], list, "timed", before, sizeof before);
        assert_true(n >= kinds[i].products);
        assert_int_equal(n, products_of(&kinds[i], again, "timed", after, sizeof after));
        free(list);
        free(again);
    }
}

static void without_tuning_the_first_is_noted(void **state)
{
    static const struct kind kind = {"untuned fp16", DT_F16, false, 5};
    static char out[8192];
    (void)state;
    char *list = plan(&kind, false, NULL);
    assert_true(products_of(&kind, list, "guessed", out, sizeof out) >= kind.products);
    free(list);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_algorithm_is_right_and_the_fastest_is_kept),
        cmocka_unit_test(without_tuning_the_first_is_noted),
    };
    struct device *d = NULL;
    struct err e = {0};
    const int rc = device_open(&d, "cuda", &(struct device_options){.threads = 1}, &e);
    if (rc == -ENODEV) {
        printf("1..0 # SKIP %s\n", e.text);
        return 0;
    }
    if (rc == 0)
        d->ops->close(d);
    return cmocka_run_group_tests_name("products of a GPU", tests, NULL, NULL);
}
