/* What a manifest says of a run, and what is made of manifests of older checkpoints. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "worker/config/config.h"
#include "worker/data/loader/input.h"
#include "worker/manifest/class_names.h"
#include "worker/manifest/manifest_choice.h"
#include "worker/manifest/manifest_model.h"
#include "worker/model/model.h"
#include "worker/program/program.h"
#include "worker/snapshot/snapshot.h"
#include "worker/snapshot/snapshot_meta.h"

static const struct program program = {.input = {.std = {1, 1, 1, 1}}};

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

/* As long as the program. */
static const char *text_of(enum net_style style, bool zeros)
{
    static char *texts[2][2];
    struct err e;
    if (!texts[style][zeros] && model_text(&texts[style][zeros], "resnet18", style, zeros, &e) < 0)
        fail_msg("%s", e.text);
    return texts[style][zeros];
}

static struct snapshot_identity identity(void)
{
    static char *classes[] = {"a", "b"};
    return (struct snapshot_identity){
        .cfg = config(),
        .arch = "resnet18",
        .model = text_of(NET_CAFFE2, true),
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

/* As a resume finds it. */
static cJSON *stored(const struct position *at, const struct snapshot_identity *id)
{
    cJSON *m = meta_make(at, id);
    char *text = cJSON_Print(m);
    cJSON_Delete(m);
    m = cJSON_Parse(text);
    free(text);
    assert_non_null(m);
    return m;
}

/* As trainers wrote it that stored the places of choices in their lists. */
static cJSON *older(const struct position *at, const struct snapshot_identity *id)
{
    cJSON *m = stored(at, id);
    replace_number(m, "input", 3);
    replace_number(m, "net_style", 1);
    cJSON_DeleteItemFromObjectCaseSensitive(m, "model");
    replace_number(cJSON_GetObjectItemCaseSensitive(m, "order"), "kind", 2);
    cJSON_DeleteItemFromObjectCaseSensitive(m, "rate_workers");
    cJSON_DeleteItemFromObjectCaseSensitive(m, "rate_batch");
    return m;
}

static const struct position middle = {.updates = 5, .step = 5, .rate_workers = 8, .rate_batch = 32};

static void choices_are_stored_by_name(void **state)
{
    const struct snapshot_identity id = identity();
    cJSON *m = stored(&middle, &id), *order = cJSON_GetObjectItemCaseSensitive(m, "order");
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
    id.model = text_of(NET_TORCH, true);
    assert_int_equal(meta_check(m, &id, false, &e), ERR_MISMATCH);
    assert_non_null(strstr(e.text, "is of --net-style caffe2, this run of torch"));
    cJSON_Delete(m);
}

static void assert_mismatch(const cJSON *m, const struct snapshot_identity *id, const char *text)
{
    struct err e = {0};
    assert_int_equal(meta_check(m, id, false, &e), ERR_MISMATCH);
    if (!strstr(e.text, text))
        fail_msg("the error is '%s', expected to hold '%s'", e.text, text);
}

static void a_model_is_compared_by_its_text(void **state)
{
    struct snapshot_identity id = identity();
    cJSON *m = stored(&middle, &id);
    struct err e = {0};
    char *text, *kept;
    (void)state;
    assert_int_equal(meta_model_text(m, &kept, &e), 0);
    assert_string_equal(kept, id.model);
    free(kept);
    id.model = text_of(NET_CAFFE2, false); /* other initial values: the same network */
    if (meta_check(m, &id, false, &e) < 0)
        fail_msg("%s", e.text);
    assert_int_equal(model_text(&text, "resnet34", NET_CAFFE2, true, &e), 0);
    id.model = text;
    assert_mismatch(m, &id,
                    "the checkpoint's model resnet18 is another than this run's: 'conv layer2.0.conv1 "
                    "from=layer1.1.relu out=128 kernel=3 stride=2 pad=1 groups=1 bias=0' is 'conv layer1.2.conv1");
    id.arch = "resnet34";
    assert_mismatch(m, &id, "the checkpoint is of arch resnet18, this run of resnet34");
    free(text);
    cJSON_Delete(m);
}

static void assert_damaged(const char *member, const char *value, const char *text)
{
    const struct snapshot_identity id = identity();
    cJSON *m = stored(&middle, &id), *model = cJSON_GetObjectItemCaseSensitive(m, "model");
    char *ignored;
    struct err e = {0};
    cJSON_ReplaceItemInObjectCaseSensitive(model, member, cJSON_CreateString(value));
    assert_int_equal(meta_model_text(m, &ignored, &e), ERR_CORRUPT);
    if (!strstr(e.text, text))
        fail_msg("the error is '%s', expected to hold '%s'", e.text, text);
    cJSON_Delete(m);
}

static void a_text_that_is_not_the_stored_one_is_refused(void **state)
{
    (void)state;
    assert_damaged("text", "input\nclassifier fc\n", "and ");
    assert_damaged("crc32c", "00000000", "and 00000000 is noted");
}

static void a_model_has_the_elements_that_are_stored(void **state)
{
    struct model_options o = {.arch = "mlp", .classes = 10, .input = input_pictures(1, 28, 28, NULL, NULL)};
    struct err e = {0};
    (void)state;
    assert_int_equal(model_check_held(&o, 669706, &e), 0);
    assert_int_equal(model_check_held(&o, 669705, &e), ERR_MISMATCH);
    assert_string_equal(e.text, "its model has 669706 elements, and only 669705 are stored");
    o.text = "input\nconv out=1048576 kernel=7\nconv out=1048576 kernel=7 pad=3\nclassifier fc\n";
    assert_int_equal(model_check_held(&o, 1000, &e), -EINVAL);
    assert_non_null(strstr(e.text, "line 3: 5.39e+13 parameters so far"));
}

static void rates_follow_the_ranks_that_training_began_with(void **state)
{
    const struct snapshot_identity id = identity();
    struct position at = {0};
    struct err e;
    (void)state;
    cJSON *m = stored(&middle, &id), *old = older(&middle, &id);
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

static void assert_names(const cJSON *meta, const char *const *want, int n)
{
    int i = 0;
    for (struct class_names c = class_names_of(meta); class_names_next(&c); i++) {
        assert_true(i < n);
        assert_int_equal(c.length, strlen(want[i]));
        assert_memory_equal(c.name, want[i], c.length);
    }
    assert_int_equal(i, n);
}

static void names_of_classes_are_stored_whatever_is_in_them(void **state)
{
    static char *names[] = {"", "\"a\", \\", "line\nend", "\xc3\xa9", "\xff\xfe", "cut\xe2\x82", "last", ""};
    static const char *const shown[] = {"",
                                        "\"a\", \\",
                                        "line\xef\xbf\xbd"
                                        "end",
                                        "\xc3\xa9",
                                        "\xef\xbf\xbd\xef\xbf\xbd",
                                        "cut\xef\xbf\xbd\xef\xbf\xbd",
                                        "last",
                                        ""};
    enum { N = sizeof names / sizeof *names };
    struct snapshot_identity id = identity();
    struct err e = {0};
    (void)state;
    id.classes = names;
    id.nclasses = N;
    cJSON *m = stored(&middle, &id);
    assert_names(m, shown, N);
    if (meta_check(m, &id, false, &e) < 0)
        fail_msg("%s", e.text);
    char *others[N], said[32];
    for (int i = 0; i < N; i++) {
        memcpy(others, names, sizeof others);
        others[i] = i == 2   ? "line\xffnd"
                    : i == 4 ? "\xff\xfd"
                    : i == 5 ? "cut\xe2\x83"
                             : "lasting"; /* 2, 4, 5: shown alike */
        id.classes = others;
        assert_int_equal(meta_check(m, &id, false, &e), ERR_MISMATCH);
        snprintf(said, sizeof said, "class %d is '", i);
        assert_non_null(strstr(e.text, said));
    }
    id.classes = names;
    id.nclasses = N - 1;
    assert_int_equal(meta_check(m, &id, false, &e), ERR_MISMATCH);
    assert_string_equal(e.text, "the checkpoint was trained on 8 classes, the training set has 7");
    cJSON_Delete(m);
}

static void names_of_classes_of_older_checkpoints_are_a_list(void **state)
{
    static char *names[] = {"a", "b\nc"};
    static const char *const shown[] = {"a", "b\nc"};
    struct snapshot_identity id = identity();
    struct err e = {0};
    (void)state;
    id.classes = names;
    id.nclasses = 2;
    cJSON *m = stored(&middle, &id);
    cJSON_DeleteItemFromObject(m, "class_bytes");
    cJSON_ReplaceItemInObject(m, "classes", cJSON_CreateStringArray(shown, 2));
    assert_names(m, shown, 2);
    if (meta_check(m, &id, false, &e) < 0)
        fail_msg("%s", e.text);
    names[1] = "c";
    assert_int_equal(meta_check(m, &id, false, &e), ERR_MISMATCH);
    cJSON_Delete(m);
}

static size_t allocated(void)
{
    const struct mallinfo2 m = mallinfo2();
    return m.uordblks + m.hblkhd;
}

static void names_of_many_classes_take_little_more_than_their_text(void **state)
{
    enum { N = 100000, NAME = 8 };
    struct snapshot_identity id = identity();
    (void)state;
    char *text = malloc((size_t)N * NAME), **names = malloc(N * sizeof *names);
    for (int i = 0; i < N; i++) {
        names[i] = text + (size_t)i * NAME;
        snprintf(names[i], NAME, "%d", i);
    }
    id.classes = names;
    id.nclasses = N;
    size_t before = allocated();
    cJSON *made = meta_make(&middle, &id);
    const size_t taken = allocated() - before;
    char *json = cJSON_PrintUnformatted(made);
    before = allocated();
    cJSON *read = cJSON_Parse(json);
    const size_t taken_again = allocated() - before;
    print_message("# %d names of up to 7 letters: %zu bytes, read again %zu\n", N, taken, taken_again);
    assert_true(taken < (size_t)N * NAME);
    assert_true(taken_again < 2 * (size_t)N * NAME); /* the parser counts a line feed as two letters */
    cJSON_Delete(made);
    cJSON_Delete(read);
    free(json);
    free(names);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(choices_are_stored_by_name),
        cmocka_unit_test(numbers_of_older_checkpoints_mean_what_they_meant),
        cmocka_unit_test(a_model_is_compared_by_its_text),
        cmocka_unit_test(a_text_that_is_not_the_stored_one_is_refused),
        cmocka_unit_test(a_model_has_the_elements_that_are_stored),
        cmocka_unit_test(rates_follow_the_ranks_that_training_began_with),
        cmocka_unit_test(names_of_classes_are_stored_whatever_is_in_them),
        cmocka_unit_test(names_of_classes_of_older_checkpoints_are_a_list),
        cmocka_unit_test(names_of_many_classes_take_little_more_than_their_text),
    };
    return cmocka_run_group_tests_name("manifest", tests, NULL, NULL);
}
