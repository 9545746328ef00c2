/* Files of tokens: windows over shards, headers, and what is wrong with a file. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/err.h"
#include "tests/must.h"
#include "tests/worker/data/fixture.h"
#include "tests/worker/scratch/scratch.h"
#include "worker/data/loader/loader.h"
#include "worker/data/sets/dataset.h"
#include "worker/data/sets/token_set.h"

enum { V = 100, T = 4 };

static const struct dataset_options options = {.kind = DATASET_TOKENS, .length = T, .vocabulary = V};

/* n tokens of `width` bytes: first, first + 1, ... mod V. head: with llm.c's header. */
static void put(const char *dir, const char *name, int width, bool head, uint32_t first, int n)
{
    struct buf b = {0};
    int32_t h[256] = {width == 2 ? TOKEN_MAGIC_U16 : TOKEN_MAGIC_U32, width == 2 ? 1 : 7, n};
    if (head)
        buf_add(&b, h, sizeof h);
    for (int i = 0; i < n; i++) {
        const uint32_t four = (first + (uint32_t)i) % V;
        const uint16_t two = (uint16_t)four;
        buf_add(&b, width == 2 ? (const void *)&two : &four, (size_t)width);
    }
    fixture_file(dir, name, b.len ? b.data : "", b.len);
    buf_free(&b);
}

static const char *path_of(const char *dir, const char *name)
{
    static char path[400];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

static struct dataset *open_set(const char *path, struct dataset_options o)
{
    struct dataset *d = NULL;
    struct err e = {0};
    if (dataset_open(&d, path, &o, &e) != 0)
        fail_msg("%s", e.text);
    return d;
}

static void fails(const char *path, struct dataset_options o, const char *words)
{
    struct dataset *d = NULL;
    struct err e = {0};
    assert_int_equal(dataset_open(&d, path, &o, &e), ERR_DATA);
    if (!strstr(e.text, words))
        fail_msg("'%s' is not in '%s'", words, e.text);
}

/* Window i is tokens first .. first + T and their successors, mod V. */
static void expect_window(struct dataset *d, size_t i, uint32_t first)
{
    int32_t row[T], labels[T];
    struct err e = {0};
    if (d->ops->read_tokens(d, i, row, labels, &e) != 0)
        fail_msg("%s", e.text);
    for (uint32_t k = 0; k < T; k++) {
        assert_int_equal(row[k], (first + k) % V);
        assert_int_equal(labels[k], (first + k + 1) % V);
    }
}

static void a_window_is_t_tokens_and_the_one_behind_each(void **state)
{
    const int n[] = {2 * T + 1, 2 * T, 3 * T, T + 1};
    const size_t windows[] = {2, 1, 2, 1};
    for (int width = 2; width <= 4; width += 2)
        for (int i = 0; i < 4; i++) {
            put(*state, "one.bin", width, true, 7, n[i]);
            struct dataset *d = open_set(path_of(*state, "one.bin"), options);
            assert_int_equal(d->n, windows[i]);
            assert_int_equal(d->length, T);
            for (size_t k = 0; k < d->n; k++)
                expect_window(d, k, 7 + (uint32_t)k * T);
            dataset_close(d);
        }
}

static void tokens_that_fill_no_window_are_told(void **state)
{
    put(*state, "one.bin", 2, true, 0, 2 * T + 3);
    struct dataset *d = open_set(path_of(*state, "one.bin"), options);
    assert_string_equal(d->left_out, "the last 2 of 11 tokens are left out: a sample has 4");
    dataset_close(d);
    put(*state, "one.bin", 2, true, 0, 2 * T + 1);
    d = open_set(path_of(*state, "one.bin"), options);
    assert_null(d->left_out);
    dataset_close(d);
}

static void tokens_without_a_header_have_the_width_of_the_option(void **state)
{
    for (int width = 2; width <= 4; width += 2) {
        struct dataset_options o = options;
        o.token_bytes = width;
        put(*state, "raw.bin", width, false, 3, 3 * T);
        struct dataset *d = open_set(path_of(*state, "raw.bin"), o);
        assert_int_equal(d->n, 2);
        expect_window(d, 1, 3 + T);
        dataset_close(d);
    }
    fails(path_of(*state, "raw.bin"), options, "of tokens without one --token-bytes is 2 or 4");
}

/* Shards of 3, 1, 0 and 9 tokens: windows begin and end in any of them. */
static void windows_go_on_from_shard_to_shard(void **state)
{
    put(*state, "s/b.bin", 4, true, 13, 1);
    put(*state, "s/a.bin", 2, true, 10, 3);
    put(*state, "s/c.bin", 2, true, 0, 0);
    put(*state, "s/d.bin", 2, true, 14, 9);
    put(*state, "s/.hidden.bin", 2, true, 50, 9);
    fixture_file(*state, "s/notes.txt", "x", 1);
    struct dataset *d = open_set(path_of(*state, "s"), options);
    assert_int_equal(d->n, 3);
    for (size_t k = 0; k < 3; k++)
        expect_window(d, k, 10 + (uint32_t)k * T);
    dataset_close(d);
}

static void expect_left_out(const char *dir, struct dataset_options o, const char *words)
{
    struct dataset *d = open_set(dir, o);
    if (!d->left_out || !strstr(d->left_out, words))
        fail_msg("'%s' is not in '%s'", words, d->left_out ? d->left_out : "");
    dataset_close(d);
}

static void what_lies_among_shards_is_told(void **state)
{
    put(*state, "s/a.bin", 2, true, 0, 9);
    put(*state, "s/more/b.bin", 2, true, 0, 9);
    put(*state, "s/x.bin/b.bin", 2, true, 0, 9);
    expect_left_out(path_of(*state, "s"), options,
                    "'more' and 1 more: passed over, a folder, and only files in the folder itself are read");
    fixture_file(*state, "n/shard.npy", "\x93NUMPY", 6);
    put(*state, "n/a.bin", 2, true, 0, 9);
    expect_left_out(path_of(*state, "n"), options, "'shard.npy': passed over, a NumPy file; numpy.load(FILE).tofile");
    put(*state, "p/my_train.bin", 2, true, 0, 9);
    put(*state, "p/my_val.bin", 2, true, 0, 9);
    put(*state, "p/other.bin", 2, true, 0, 9);
    expect_left_out(path_of(*state, "p"), options,
                    "'other.bin': passed over, as others have train or val in their names, and it has neither");
    put(*state, "w/a.bin", 2, true, 0, 9);
    put(*state, "w/b.bin", 4, true, 0, 9);
    expect_left_out(path_of(*state, "w"), options, "w/b.bin' has tokens of 4 bytes, '");
}

static void what_is_no_shard_is_refused(void **state)
{
    struct dataset_options o = options;
    o.token_bytes = 2;
    fixture_file(*state, "n/a.bin", "\x93NUMPY\1\0v\0{}", 12);
    fails(path_of(*state, "n"), o, "n/a.bin' is a NumPy array and no file of tokens: numpy.load(FILE).tofile");
    fixture_file(*state, "z/a.bin", "PK\3\4 and more", 14);
    fails(path_of(*state, "z"), o, "z/a.bin' is a zip file and no file of tokens: torch.save() writes such files");
    fixture_file(*state, "y/shard.npy", "\x93NUMPY", 6);
    fails(path_of(*state, "y"), options, "of 'shard.npy', a NumPy file, numpy.load(FILE).tofile(NAME.bin)");
    put(*state, "f/inner/a.bin", 2, true, 0, 9);
    fails(path_of(*state, "f"), options, "it holds the folder 'inner': give that one");
    put(*state, "m/a.bin", 2, true, 0, 9);
    put(*state, "m/b.bin", 2, false, 0, 600);
    fails(path_of(*state, "m"), o, "m/b.bin' has none (expected files of one kind)");
    put(*state, "l/a.bin", 2, true, 0, 9);
    assert_int_equal(symlink("nowhere", path_of(*state, "l/b.bin")), 0);
    fails(path_of(*state, "l"), options, "l/b.bin' is a link that leads nowhere: remove it, or bring back");
}

static void a_folder_of_both_parts_gives_the_one_that_is_wanted(void **state)
{
    struct dataset_options o = options;
    put(*state, "fineweb_train_000001.bin", 2, true, 20, 9);
    put(*state, "fineweb_val_000000.bin", 2, true, 60, 9);
    for (int testing = 0; testing < 2; testing++) {
        o.testing = testing;
        struct dataset *d = open_set(*state, o);
        assert_int_equal(d->n, 2);
        expect_window(d, 0, testing ? 60 : 20);
        dataset_close(d);
    }
}

static void what_is_wrong_with_a_file_is_said(void **state)
{
    struct dataset_options wide = options;
    const int32_t version[256] = {TOKEN_MAGIC_U16, 2, 10};
    char cut[1024 + 2 * 10 - 1] = "";
    wide.token_bytes = 4;
    put(*state, "one.bin", 2, true, 0, 10);
    fails(path_of(*state, "one.bin"), wide, "has llm.c's header, of tokens of 2 bytes (expected 4, --token-bytes)");
    memcpy(cut, &(int32_t[3]){TOKEN_MAGIC_U16, 1, 10}, 12);
    fixture_file(*state, "cut.bin", cut, sizeof cut);
    fails(path_of(*state, "cut.bin"), options, "has 1043 bytes, and its header tells of 10 tokens of 2 (expected 1044");
    fixture_file(*state, "version.bin", version, sizeof version);
    fails(path_of(*state, "version.bin"), options, "has version 2 of llm.c's 20240520 (expected 1)");
    fixture_file(*state, "odd.bin", cut, 1023);
    fails(path_of(*state, "odd.bin"), wide, "has 1023 bytes (expected a multiple of 4, --token-bytes)");
    fixture_file(*state, "none.bin", "", 0);
    fails(path_of(*state, "none.bin"), options, "is empty");
    put(*state, "short.bin", 2, true, 0, T);
    fails(path_of(*state, "short.bin"), options, "holds 4 tokens (expected at least 5: a sample is 4 and one behind)");
    fixture_file(*state, "empty/notes.txt", "x", 1);
    fails(path_of(*state, "empty"), options, "holds no file of tokens (expected some with names NAME.bin)");
    fails(path_of(*state, "nowhere"), options, "does not exist");
}

static void pictures_are_no_tokens(void **state)
{
    struct dataset *d = NULL;
    struct err e = {0};
    const struct dataset_options pictures = {.kind = DATASET_TOKENS};
    put(*state, "one.bin", 2, true, 0, 10);
    assert_int_equal(dataset_open(&d, path_of(*state, "one.bin"), &pictures, &e), ERR_USAGE);
    assert_non_null(strstr(e.text, "such a set is for a model that reads tokens"));
}

static void a_header_of_fewer_tokens_than_none_is_refused(void **state)
{
    const int32_t head[256] = {TOKEN_MAGIC_U32, 7, -1};
    fixture_file(*state, "one.bin", head, sizeof head);
    fails(path_of(*state, "one.bin"), options, "tells of -1 tokens");
}

static void expect_error(struct dataset *d, size_t i, const char *words)
{
    int32_t row[T], labels[T];
    struct err e = {0};
    assert_int_equal(d->ops->read_tokens(d, i, row, labels, &e), ERR_DATA);
    if (!strstr(e.text, words))
        fail_msg("'%s' is not in '%s'", words, e.text);
}

/* As a row and as the label at its end. */
static void a_token_outside_of_the_vocabulary_is_named_with_file_and_byte(void **state)
{
    struct dataset_options o = options;
    o.vocabulary = 8;
    put(*state, "one.bin", 2, true, 0, 3 * T);
    struct dataset *d = open_set(path_of(*state, "one.bin"), o);
    expect_error(d, 1, "token 8 at byte 1040 of '");
    expect_error(d, 1, "one.bin' (expected less than the vocabulary, 8)");
    dataset_close(d);
    put(*state, "wide.bin", 4, false, 0, 3 * T);
    o.token_bytes = 4;
    const uint32_t most = UINT32_MAX;
    FILE *f = fopen(path_of(*state, "wide.bin"), "r+b");
    assert_non_null(f);
    assert_int_equal(fwrite(&most, sizeof most, 1, f), 1);
    fclose(f);
    d = open_set(path_of(*state, "wide.bin"), o);
    expect_error(d, 0, "token 4294967295 at byte 0 of '");
    dataset_close(d);
}

static void a_file_that_is_cut_while_it_is_mapped_is_told(void **state)
{
    put(*state, "one.bin", 2, true, 0, 3 * T);
    struct dataset *d = open_set(path_of(*state, "one.bin"), options);
    assert_int_equal(truncate(path_of(*state, "one.bin"), 0), 0);
    expect_error(d, 0, "has 0 bytes now, and had 1048 when it was opened");
    dataset_close(d);
}

/* --- batches */

static struct loader *open_loader(struct dataset *d, struct loader_options o)
{
    struct loader *l = NULL;
    struct err e = {0};
    if (loader_create(&l, d, &o, &e) != 0 || loader_seek(l, 0, 0, 1, &e) != 0)
        fail_msg("%s", e.text);
    return l;
}

/* The windows of a step, over all ranks, are the same for any number of them; a row is (T) tokens, (T) labels. */
static void ranks_share_the_windows_of_a_step(void **state)
{
    const struct loader_options o = {.sampler = {.world = 1, .batch = 5, .shuffle = true, .seed = 3},
                                     .input = {.tokens = T},
                                     .threads = 2,
                                     .timeout_ms = 20000};
    put(*state, "one.bin", 2, true, 0, 12 * T + 1);
    struct dataset *d = open_set(path_of(*state, "one.bin"), options);
    assert_int_equal(d->n, 12);
    bool seen[2][3][12] = {{{false}}};
    for (int world = 1; world <= 2; world++)
        for (int rank = 0; rank < world; rank++) {
            struct loader_options mine = o;
            struct loader_batch b;
            mine.sampler.world = world;
            mine.sampler.rank = rank;
            struct loader *l = open_loader(d, mine);
            while (loader_next(l, &b, NULL) == 0) {
                for (size_t i = 0; i < b.rows; i++) {
                    const int32_t *row = (const int32_t *)b.b.rows + i * T, *labels = b.b.labels + i * T;
                    if (b.b.samples[i] == BATCH_PADDING) {
                        assert_true(b.b.weights[i] == 0 && row[T - 1] == 0);
                        continue;
                    }
                    assert_true(b.b.weights[i] == 1);
                    assert_int_equal(row[0], b.b.samples[i] * T % V);
                    assert_int_equal(labels[T - 1], (b.b.samples[i] * T + T) % V);
                    seen[world - 1][b.step][b.b.samples[i]] = true;
                }
                loader_done(l, &b);
            }
            loader_destroy(l);
        }
    assert_memory_equal(seen[0], seen[1], sizeof seen[0]);
    dataset_close(d);
}

static void a_token_outside_of_the_vocabulary_ends_the_epoch(void **state)
{
    struct dataset_options o = options;
    struct loader_batch b;
    struct err e = {0};
    o.vocabulary = 8;
    put(*state, "one.bin", 2, true, 0, 3 * T);
    struct dataset *d = open_set(path_of(*state, "one.bin"), o);
    struct loader *l = open_loader(
        d, (struct loader_options){
               .sampler = {.world = 1, .batch = 2}, .input = {.tokens = T}, .threads = 1, .timeout_ms = 20000});
    assert_int_equal(loader_next(l, &b, &e), ERR_DATA);
    assert_non_null(strstr(e.text, "'window 1 of "));
    assert_non_null(strstr(e.text, "token 8 at byte 1040"));
    loader_destroy(l);
    dataset_close(d);
}

/* --- text */

static void bytes_of_a_text_become_tokens(void **state)
{
    struct err e = {0};
    long long n[2];
    char text[70001];
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = (char)(i % 251);
    fixture_file(*state, "text", text, sizeof text);
    char out[400];
    snprintf(out, sizeof out, "%s/made/here", (char *)*state);
    char source[400];
    snprintf(source, sizeof source, "%s/text", (char *)*state);
    struct text_options o = {.text = source, .out = out, .val_share = 0.1};
    if (text_make(&o, n, &e) != 0)
        fail_msg("%s", e.text);
    assert_int_equal(n[0], 63001);
    assert_int_equal(n[1], 7000);
    struct dataset_options bytes = options;
    bytes.vocabulary = 256;
    for (int testing = 0; testing < 2; testing++) {
        int32_t row[T], labels[T];
        bytes.testing = testing;
        struct dataset *d = open_set(out, bytes);
        assert_int_equal(d->n, ((testing ? 7000 : 63001) - 1) / T);
        assert_int_equal(d->ops->read_tokens(d, d->n - 1, row, labels, &e), 0);
        const size_t at = (testing ? 63001 : 0) + d->n * T;
        assert_int_equal(labels[T - 1], at % 251);
        dataset_close(d);
    }
    o.val_share = 0; /* the older val.bin is of another text */
    assert_int_equal(text_make(&o, n, &e), 0);
    assert_int_equal(access(path_of(*state, "made/here/train.bin"), F_OK), 0);
    assert_int_not_equal(access(path_of(*state, "made/here/val.bin"), F_OK), 0);
    fixture_file(*state, "text", "", 0);
    assert_int_equal(text_make(&o, n, &e), ERR_DATA);
    assert_non_null(strstr(e.text, "has 0 bytes"));
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, scratch_make, scratch_drop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(a_window_is_t_tokens_and_the_one_behind_each),
        CASE(tokens_that_fill_no_window_are_told),
        CASE(tokens_without_a_header_have_the_width_of_the_option),
        CASE(windows_go_on_from_shard_to_shard),
        CASE(what_lies_among_shards_is_told),
        CASE(what_is_no_shard_is_refused),
        CASE(a_folder_of_both_parts_gives_the_one_that_is_wanted),
        CASE(what_is_wrong_with_a_file_is_said),
        CASE(pictures_are_no_tokens),
        CASE(a_header_of_fewer_tokens_than_none_is_refused),
        CASE(a_token_outside_of_the_vocabulary_is_named_with_file_and_byte),
        CASE(a_file_that_is_cut_while_it_is_mapped_is_told),
        CASE(ranks_share_the_windows_of_a_step),
        CASE(a_token_outside_of_the_vocabulary_ends_the_epoch),
        CASE(bytes_of_a_text_become_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
