/* What a manifest says of a run, and what is made of manifests of older checkpoints. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "common/base/err.h"
#include "worker/config/config.h"
#include "worker/data/loader/input.h"
#include "worker/model/model.h"
#include "worker/program/program.h"
#include "worker/snapshot/snapshot.h"
#include "worker/snapshot/snapshot_choice.h"
#include "worker/snapshot/snapshot_meta.h"

static const struct program program = {.std = {1, 1, 1, 1}};

static const struct train_config *config(void)
{
    static struct train_config cfg;
    struct err e;
    char *argv[] = {"trainer", "--train-data", "x", NULL};
    struct arg_result r = {0};
    assert_true(args_parse(&train_program, 3, argv, &cfg, &r, &e) >= 0);
    cfg.input = INPUT_CIFAR;
    cfg.net_style = NET_CAFFE2;
    return &cfg;
}

static struct snapshot_identity identity(void)
{
    static char *classes[] = {"a", "b"};
    return (struct snapshot_identity){
        .cfg = config(),
        .arch = "resnet18",
        .classes = classes,
        .nclasses = 2,
        .batch = 64,
        .world = 4,
        .device = "d",
        .amp = "fp32",
        .optimizer = "sgd",
        .run_id = "",
        .order = {.kind = SAMPLER_SHARDED, .n = 640, .batch = 64, .world = 4, .shards = 2, .shuffle = true},
        .program = &program};
}

static void replace_number(cJSON *o, const char *name, int value)
{
    cJSON_ReplaceItemInObjectCaseSensitive(o, name, cJSON_CreateNumber(value));
}

/* As trainers wrote it that stored the places of choices in their lists. */
static cJSON *older(const struct position *at, const struct snapshot_identity *id)
{
    cJSON *m = meta_make(at, id);
    replace_number(m, "input", 3);
    replace_number(m, "net_style", 1);
    replace_number(cJSON_GetObjectItemCaseSensitive(m, "order"), "kind", 2);
    cJSON_DeleteItemFromObjectCaseSensitive(m, "rate_workers");
    cJSON_DeleteItemFromObjectCaseSensitive(m, "rate_batch");
    return m;
}

static const struct position middle = {.updates = 5, .step = 5, .rate_workers = 8, .rate_batch = 32};

static void choices_are_stored_by_name(void **state)
{
    const struct snapshot_identity id = identity();
    cJSON *m = meta_make(&middle, &id), *order = cJSON_GetObjectItemCaseSensitive(m, "order");
    (void)state;
    assert_string_equal(cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(m, "input")), "cifar");
    assert_string_equal(cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(m, "net_style")), "caffe2");
    assert_string_equal(cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(order, "kind")), "sharded");
    cJSON_Delete(m);
}

static void numbers_of_older_checkpoints_mean_what_they_meant(void **state)
{
    static const char *const styles[] = {"another", "caffe2", "torch"};
    struct snapshot_identity id = identity();
    struct err e = {0};
    cJSON *m = older(&middle, &id);
    (void)state;
    assert_string_equal(meta_choice(m, "input"), "cifar");
    assert_int_equal(meta_choice_id(m, "net_style", styles, 3, 0), 1);
    if (meta_check(m, &id, false, &e) < 0)
        fail_msg("%s", e.text);
    id.order.kind = SAMPLER_GLOBAL;
    assert_int_equal(meta_check(m, &id, false, &e), ERR_MISMATCH);
    assert_non_null(strstr(e.text, "--sampler sharded"));
    id = identity();
    struct train_config torch = *id.cfg;
    torch.net_style = NET_TORCH;
    id.cfg = &torch;
    assert_int_equal(meta_check(m, &id, false, &e), ERR_MISMATCH);
    assert_non_null(strstr(e.text, "is of --net-style caffe2, this run of torch"));
    cJSON_Delete(m);
}

static void rates_follow_the_ranks_that_training_began_with(void **state)
{
    const struct snapshot_identity id = identity();
    struct position at = {0};
    struct err e;
    (void)state;
    cJSON *m = meta_make(&middle, &id), *old = older(&middle, &id);
    assert_int_equal(meta_position(m, &at, &e), 0);
    assert_int_equal(at.rate_workers, 8);
    assert_int_equal(at.rate_batch, 32);
    at = (struct position){0};
    assert_int_equal(meta_position(old, &at, &e), 0); /* those that it was saved with */
    assert_int_equal(at.rate_workers, 4);
    assert_int_equal(at.rate_batch, 64);
    cJSON_Delete(m);
    cJSON_Delete(old);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(choices_are_stored_by_name),
        cmocka_unit_test(numbers_of_older_checkpoints_mean_what_they_meant),
        cmocka_unit_test(rates_follow_the_ranks_that_training_began_with),
    };
    return cmocka_run_group_tests_name("manifest", tests, NULL, NULL);
}
