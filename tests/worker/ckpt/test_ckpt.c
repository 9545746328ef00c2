#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/err.h"
#include "common/base/log.h"
#include "tests/worker/ckpt/state.h"
#include "tests/worker/scratch/scratch.h"

static void save(void **state, int64_t step, int keep)
{
    struct err e = {0};
    if (state_save(*state, step, keep, &e) < 0)
        fail_msg("%s", e.text);
}

static int64_t latest(void **state)
{
    struct err e = {0};
    int64_t step = -2;
    if (ckpt_latest(*state, &step, &e) < 0)
        fail_msg("%s", e.text);
    return step;
}

/* Flip one bit of a file. */
static void damage(const char *path, size_t at)
{
    size_t n;
    char *data = scratch_read(path, &n);
    assert_true(at < n);
    data[at] ^= 0x10;
    scratch_write(path, data, n);
    free(data);
}

static void a_saved_checkpoint_is_found_and_read_back(void **state)
{
    save(state, 1234, 0);
    assert_int_equal(latest(state), 1234);
    state_check(*state, 1234);
    char to[64] = "";
    assert_int_equal(readlink(scratch(state, "latest"), to, sizeof to - 1), (int)strlen("step-00001234"));
    assert_string_equal(to, "step-00001234");
    assert_int_equal(scratch_count(scratch(state, "step-00001234"), ""), 3);
}

static void the_folder_is_made_with_its_parents(void **state)
{
    struct err e = {0};
    const char *dir = scratch(state, "runs/7/checkpoints");
    if (state_save(dir, 0, 0, &e) < 0)
        fail_msg("%s", e.text);
    state_check(dir, 0);
    scratch_write(scratch(state, "file"), "", 0);
    assert_int_equal(state_save(scratch(state, "file/below"), 0, 0, &e), ERR_OUTPUT);
    assert_non_null(strstr(e.text, scratch(state, "file")));
}

static void without_a_checkpoint_there_is_no_latest(void **state)
{
    int64_t step = 5;
    struct err e;
    assert_int_equal(latest(state), -1);
    assert_int_equal(ckpt_latest(scratch(state, "no/such/folder"), &step, &e), 0);
    assert_int_equal(step, -1);
    const char *names[] = {"step-1", "step-00000009.tmp", "step-0000000x", "step-000000001", "step-"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        assert_int_equal(mkdir(scratch(state, "%s", names[i]), 0700), 0);
    assert_int_equal(latest(state), -1);
    struct ckpt *c;
    assert_int_equal(ckpt_open(&c, *state, 77, &e), -ENOENT);
    assert_non_null(strstr(e.text, "step-00000077"));
}

static void the_newest_is_chosen_by_number_beyond_eight_digits(void **state)
{
    save(state, 99999999, 0);
    save(state, 100000000, 0);
    save(state, 5, 0);
    assert_int_equal(latest(state), 100000000);
}

static void equal_states_give_equal_model_files(void **state)
{
    size_t n, m;
    save(state, 3, 0);
    struct err e;
    assert_int_equal(state_save(scratch(state, "other"), 3, 0, &e), 0);
    char *a = scratch_read(scratch(state, "step-00000003/model.safetensors"), &n);
    char *b = scratch_read(scratch(state, "other/step-00000003/model.safetensors"), &m);
    assert_int_equal(n, m);
    assert_memory_equal(a, b, n);
    free(a);
    free(b);
}

static void only_the_newest_are_kept(void **state)
{
    for (int64_t step = 10; step <= 60; step += 10)
        save(state, step, 2);
    assert_int_equal(latest(state), 60);
    state_check(*state, 50);
    assert_int_equal(scratch_count(*state, "0"), 2);
    assert_int_equal(scratch_count(*state, ".tmp"), 0);
    save(state, 70, 0); /* 0: keep all */
    assert_int_equal(scratch_count(*state, "0"), 3);
}

static void the_one_just_saved_is_kept_even_if_a_newer_one_lies_there(void **state)
{
    save(state, 200, 1);
    save(state, 150, 1);
    state_check(*state, 200);
    state_check(*state, 150);
}

static void saving_the_same_step_again_leaves_it_as_it_is(void **state)
{
    save(state, 8, 0);
    struct stat before, after;
    assert_int_equal(stat(scratch(state, "step-00000008/model.safetensors"), &before), 0);
    save(state, 8, 0);
    assert_int_equal(stat(scratch(state, "step-00000008/model.safetensors"), &after), 0);
    assert_int_equal(before.st_ino, after.st_ino);
}

static void what_becomes_known_later_is_put_into_the_manifest(void **state)
{
    struct err e = {0};
    struct ckpt *c;
    save(state, 7, 0);
    scratch_write(scratch(state, "step-00000007/manifest.json.tmp"), "torn", 4); /* of a process that was killed */
    cJSON *more = cJSON_CreateObject();
    cJSON_AddNumberToObject(more, "epoch", 0.25);
    cJSON_AddStringToObject(more, "new", "\"x\"");
    assert_int_equal(ckpt_amend(*state, 7, more, &e), 0);
    assert_int_equal(ckpt_amend(*state, 8, more, &e), -ENOENT);
    cJSON_Delete(more);
    assert_int_equal(ckpt_open(&c, *state, 7, &e), 0);
    assert_int_equal(ckpt_verify(c, &e), 0);
    const cJSON *meta = ckpt_meta(c);
    assert_true(cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(meta, "epoch")) == 0.25);
    assert_string_equal(cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(meta, "new")), "\"x\"");
    ckpt_close(c);
    assert_int_equal(scratch_count(scratch(state, "step-00000007"), ""), 3);
}

static void a_manifest_with_the_names_of_millions_of_classes_is_read_again(void **state)
{
    enum { BYTES = 80 << 20 };
    struct err e = {0};
    struct ckpt *c;
    char *names = malloc(BYTES + 1);
    memset(names, 'n', BYTES);
    names[BYTES] = '\0';
    save(state, 9, 0);
    cJSON *more = cJSON_CreateObject();
    assert_non_null(cJSON_AddStringToObject(more, "names", names));
    free(names);
    assert_int_equal(ckpt_amend(*state, 9, more, &e), 0);
    cJSON_Delete(more);
    if (ckpt_open(&c, *state, 9, &e) < 0)
        fail_msg("%s", e.text);
    const char *found = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(ckpt_meta(c), "names"));
    assert_int_equal(strlen(found), BYTES);
    ckpt_close(c);
}

static void a_leftover_of_a_killed_save_is_ignored_and_removed(void **state)
{
    save(state, 1, 0);
    assert_int_equal(mkdir(scratch(state, "step-00000002.tmp"), 0700), 0);
    scratch_write(scratch(state, "step-00000002.tmp/model.safetensors"), "half", 4);
    scratch_write(scratch(state, "latest.tmp"), "st", 2);
    assert_int_equal(latest(state), 1);
    save(state, 2, 0);
    assert_int_equal(scratch_count(*state, ".tmp"), 0);
    assert_int_equal(latest(state), 2);
    state_check(*state, 2);
}

static void a_flipped_bit_names_tensor_and_file(void **state)
{
    static const struct {
        const char *file, *name;
        struct ckpt_tensor t;
        size_t from_end; /* bytes behind the flipped one: tensors lie in name order */
    } cases[] = {
        {"model", "fc.weight", {.dtype = DT_F32, .ndim = 2, .shape = {10, 512}}, 17},
        {"train", "momentum.conv1.weight", {.dtype = DT_F32, .ndim = 1, .shape = {STATE_LARGE}}, 3 * 8 + 100},
    };
    for (size_t i = 0; i < 2; i++) {
        int64_t step = (int64_t)i;
        save(state, step, 0);
        const char *path = scratch(state, "step-%08d/%s.safetensors", (int)i, cases[i].file);
        struct stat st;
        assert_int_equal(stat(path, &st), 0);
        damage(path, (size_t)st.st_size - 1 - cases[i].from_end);
        struct ckpt *c;
        struct err e = {0};
        assert_int_equal(ckpt_open(&c, *state, step, &e), 0);
        struct ckpt_tensor want = cases[i].t;
        snprintf(want.name, sizeof want.name, "%s", cases[i].name);
        char *room = malloc(STATE_LARGE * 4);
        for (int k = 0; k < 2; k++) {
            e.text[0] = 0;
            int rc = k ? ckpt_verify(c, &e) : ckpt_read(c, cases[i].file, &want, room, &e);
            if (rc != ERR_CORRUPT || !strstr(e.text, cases[i].name) || !strstr(e.text, path))
                fail_msg("%s '%s'", err_name(rc), e.text);
        }
        free(room);
        ckpt_close(c);
    }
}

static void a_damaged_newest_is_passed_over(void **state)
{
    save(state, 1, 0);
    save(state, 2, 0);
    const char *model = scratch(state, "step-00000002/model.safetensors");
    size_t n;
    char *data = scratch_read(model, &n);
    scratch_write(model, data, n - 1);
    free(data);
    struct ckpt *c;
    struct err e = {0};
    assert_int_equal(ckpt_open(&c, *state, 2, &e), ERR_CORRUPT);
    assert_non_null(strstr(e.text, model));
    assert_int_equal(latest(state), 1);
    save(state, 2, 0); /* made again; the damaged one is kept aside */
    state_check(*state, 2);
    assert_int_equal(scratch_count(*state, ".corrupt"), 1);
}

static void if_all_are_damaged_the_run_does_not_start_over(void **state)
{
    save(state, 1, 0);
    save(state, 2, 0);
    damage(scratch(state, "step-00000001/manifest.json"), 40);
    scratch_write(scratch(state, "step-00000002/model.safetensors"), "", 0);
    struct err e = {0};
    int64_t step = -5;
    assert_int_equal(ckpt_latest(*state, &step, &e), ERR_CORRUPT);
    assert_int_equal(step, -5);
    assert_non_null(strstr(e.text, "only 2 damaged"));
    assert_non_null(strstr(e.text, "step-00000002/model.safetensors"));
}

static void a_damaged_or_foreign_manifest_is_refused(void **state)
{
    static const struct {
        const char *text;
        int code;
        const char *says;
    } cases[] = {
        {"", ERR_CORRUPT, "manifest.json"},
        {"{}", ERR_CORRUPT, "format"},
        {"{\"format\":\"other\",\"version\":1}", ERR_CORRUPT, "'other'"},
        {"{\"format\":\"crun checkpoint\",\"version\":2}", ERR_MISMATCH, "version is 2"},
        {"{\"format\":\"crun checkpoint\",\"version\":1,\"crc32c\":\"xyz\"}", ERR_CORRUPT, "'xyz'"},
        {"{\"format\":\"crun checkpoint\",\"version\":1,\"crc32c\":\"00000000\"}", ERR_CORRUPT, "CRC32C"},
    };
    save(state, 4, 0);
    const char *path = scratch(state, "step-00000004/manifest.json");
    size_t n;
    char *good = scratch_read(path, &n);
    struct ckpt *c;
    struct err e;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        scratch_write(path, cases[i].text, strlen(cases[i].text));
        int rc = ckpt_open(&c, *state, 4, &e);
        if (rc != cases[i].code || !strstr(e.text, cases[i].says))
            fail_msg("case %zu: %s '%s' instead of '%s'", i, err_name(rc), e.text, cases[i].says);
    }
    char *digit = strstr(good, "\"half\":");
    assert_non_null(digit);
    digit[strcspn(digit, "0123456789")] ^= 1;
    scratch_write(path, good, n);
    assert_int_equal(ckpt_open(&c, *state, 4, &e), ERR_CORRUPT);
    free(good);
}

static void a_checkpoint_under_another_number_is_refused(void **state)
{
    save(state, 4, 0);
    assert_int_equal(rename(scratch(state, "step-00000004"), scratch(state, "step-00000005")), 0);
    struct ckpt *c;
    struct err e = {0};
    assert_int_equal(ckpt_open(&c, *state, 5, &e), ERR_CORRUPT);
    assert_non_null(strstr(e.text, "step 4 instead of 5"));
}

static void a_missing_tensor_and_another_shape_are_told_apart(void **state)
{
    save(state, 6, 0);
    struct ckpt *c;
    struct err e = {0};
    assert_int_equal(ckpt_open(&c, *state, 6, &e), 0);
    struct ckpt_tensor t = {.name = "fc.weight", .dtype = DT_F32, .ndim = 2, .shape = {1000, 512}};
    char room[16];
    assert_int_equal(ckpt_read(c, "model", &t, room, &e), ERR_MISMATCH);
    assert_non_null(strstr(e.text, "'fc.weight'"));
    assert_non_null(strstr(e.text, "F32 [10, 512] instead of F32 [1000, 512]"));
    struct ckpt_tensor half = {.name = "fc.bias", .dtype = DT_BF16, .ndim = 1, .shape = {10}};
    assert_int_equal(ckpt_read(c, "model", &half, room, &e), ERR_MISMATCH);
    assert_non_null(strstr(e.text, "F32 [10] instead of BF16 [10]"));
    struct ckpt_tensor none = {.name = "layer5.weight", .dtype = DT_F32};
    assert_int_equal(ckpt_read(c, "model", &none, room, &e), -ENOENT);
    assert_non_null(strstr(e.text, "'layer5.weight'"));
    assert_non_null(strstr(e.text, "model.safetensors"));
    assert_int_equal(ckpt_read(c, "extra", &none, room, &e), -EINVAL);
    assert_null(ckpt_file(c, "extra"));
    assert_int_equal(safetensors_count(ckpt_file(c, "model")), STATE_MODEL);
    assert_int_equal(ckpt_verify(c, &e), 0);
    ckpt_close(c);
}

/* Fault tests aim at the time between the two lines. */
static void the_log_says_when_a_save_begins_and_ends(void **state)
{
    const char *path = scratch(state, "stderr");
    FILE *f = fopen(path, "we");
    assert_non_null(f);
    int saved = dup(2);
    assert_int_equal(dup2(fileno(f), 2), 2);
    log_init(LOG_INFO, "");
    struct err e = {0};
    int rc = state_save(*state, 12, 0, &e);
    log_init(LOG_ERROR, "");
    dup2(saved, 2);
    close(saved);
    fclose(f);
    assert_int_equal(rc, 0);
    size_t n;
    char *text = scratch_read(path, &n), *begin = strstr(text, "ckpt: saving step 12\n");
    if (!begin || !strstr(begin, "ckpt: saved step 12\n"))
        fail_msg("the log is '%s'", text);
    free(text);
}

static void bad_arguments_are_refused(void **state)
{
    struct err e = {0};
    assert_int_equal(ckpt_save(*state, -1, NULL, 0, NULL, 0, NULL, 0, &e), -EINVAL);
    assert_non_null(strstr(e.text, "-1"));
    struct ckpt_tensor twice[2] = {{.name = "a", .dtype = DT_U8}, {.name = "a", .dtype = DT_U8}};
    twice[0].data = twice[1].data = "x";
    assert_int_equal(ckpt_save(*state, 1, twice, 2, NULL, 0, NULL, 0, &e), -EEXIST);
    cJSON *text = cJSON_CreateString("no object");
    assert_int_equal(ckpt_save(*state, 1, NULL, 0, NULL, 0, text, 0, &e), -EINVAL);
    cJSON_Delete(text);
    assert_int_equal(latest(state), -1);
    assert_int_equal(scratch_count(*state, ""), 0);
}

static void one_that_cannot_be_read_is_no_reason_to_start_over(void **state)
{
    char manifest[4096];
    int64_t step = -7;
    struct err e = {0};
    save(state, 1, 0);
    save(state, 2, 0);
    snprintf(manifest, sizeof manifest, "%s/step-00000002/manifest.json", (const char *)*state);
    assert_int_equal(unlink(manifest), 0);
    assert_int_equal(symlink("manifest.json", manifest), 0); /* ELOOP, also for root */
    assert_int_equal(ckpt_latest(*state, &step, &e), -ELOOP);
    assert_int_equal(step, -7);
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, scratch_make, scratch_drop)

int main(void)
{
    log_init(LOG_ERROR, ""); /* passing over damaged ones is a warning */
    const struct CMUnitTest tests[] = {
        CASE(a_saved_checkpoint_is_found_and_read_back),
        CASE(one_that_cannot_be_read_is_no_reason_to_start_over),
        CASE(the_folder_is_made_with_its_parents),
        CASE(without_a_checkpoint_there_is_no_latest),
        CASE(the_newest_is_chosen_by_number_beyond_eight_digits),
        CASE(equal_states_give_equal_model_files),
        CASE(only_the_newest_are_kept),
        CASE(the_one_just_saved_is_kept_even_if_a_newer_one_lies_there),
        CASE(saving_the_same_step_again_leaves_it_as_it_is),
        CASE(what_becomes_known_later_is_put_into_the_manifest),
        CASE(a_manifest_with_the_names_of_millions_of_classes_is_read_again),
        CASE(a_leftover_of_a_killed_save_is_ignored_and_removed),
        CASE(a_flipped_bit_names_tensor_and_file),
        CASE(a_damaged_newest_is_passed_over),
        CASE(if_all_are_damaged_the_run_does_not_start_over),
        CASE(a_damaged_or_foreign_manifest_is_refused),
        CASE(a_checkpoint_under_another_number_is_refused),
        CASE(a_missing_tensor_and_another_shape_are_told_apart),
        CASE(the_log_says_when_a_save_begins_and_ends),
        CASE(bad_arguments_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
