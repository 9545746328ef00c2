/* What a rank's own folder takes while it reads a LevelDB. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <leveldb/c.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/base/buf.h"
#include "common/base/err.h"
#include "tests/worker/scratch/scratch.h"
#include "worker/data/db/record.h"
#include "worker/data/image/rng.h"
#include "worker/data/sets/dataset.h"

enum { RECORDS = 2500, PICTURE_BYTES = 20000, PASSES = 12 };

/* Records of noise under keys of noise: tables of several levels cover the same keys. */
static void make_db(const char *path)
{
    char picture[PICTURE_BYTES], *why = NULL;
    struct rng r = rng_stream(1, RNG_ORDER, 0, 0);
    struct buf record = {0};
    struct err e = {0};
    leveldb_options_t *options = leveldb_options_create();
    leveldb_writeoptions_t *writing = leveldb_writeoptions_create();
    leveldb_options_set_create_if_missing(options, 1);
    leveldb_options_set_compression(options, leveldb_no_compression);
    leveldb_t *db = leveldb_open(options, path, &why);
    assert_non_null(db);
    for (int i = 0; i < RECORDS; i++) {
        for (size_t at = 0; at < sizeof picture; at += 8)
            memcpy(picture + at, &(uint64_t){rng_u64(&r)}, 8);
        buf_clear(&record);
        assert_int_equal(record_write_encoded(RECORD_DATUM, picture, sizeof picture, i % 10, &record, &e), 0);
        const uint64_t key = rng_u64(&r);
        leveldb_put(db, writing, (const char *)&key, sizeof key, record.data, record.len, &why);
        assert_null(why);
    }
    leveldb_close(db);
    leveldb_writeoptions_destroy(writing);
    leveldb_options_destroy(options);
    buf_free(&record);
}

/* Bytes in files, links not counted; of all folders below. */
static long long own_bytes(const char *path)
{
    long long sum = 0;
    DIR *d = opendir(path);
    assert_non_null(d);
    for (struct dirent *entry; (entry = readdir(d));) {
        char at[4096];
        struct stat st;
        snprintf(at, sizeof at, "%s/%s", path, entry->d_name);
        if (entry->d_name[0] == '.' || lstat(at, &st) != 0) /* LevelDB removes some */
            continue;
        sum += S_ISDIR(st.st_mode) ? own_bytes(at) : S_ISREG(st.st_mode) ? (long long)st.st_size : 0;
    }
    closedir(d);
    return sum;
}

static void read_all(struct dataset *d, uint64_t pass)
{
    struct buf data = {0};
    struct err e = {0};
    struct rng r = rng_stream(2, RNG_ORDER, pass, 0);
    for (int i = 0; i < RECORDS; i++) {
        int label = -1;
        buf_clear(&data);
        if (d->ops->read(d, (size_t)rng_below(&r, RECORDS), &data, &label, &e) != 0)
            fail_msg("%s", e.text);
        assert_int_equal(data.len, PICTURE_BYTES);
    }
    buf_free(&data);
}

static void reading_copies_nothing(void **state)
{
    char db[4096], views[4096];
    struct dataset *d = NULL;
    struct err e = {0};
    snprintf(db, sizeof db, "%s/db", (char *)*state);
    snprintf(views, sizeof views, "%s/views", (char *)*state);
    make_db(db);
    assert_int_equal(mkdir(views, 0777), 0);
    setenv("TMPDIR", views, 1);
    if (dataset_open(&d, db, &(struct dataset_options){.num_labels = 10}, &e) != 0)
        fail_msg("%s", e.text);
    assert_int_equal(d->n, RECORDS);
    for (uint64_t pass = 0; pass < PASSES; pass++)
        read_all(d, pass);
    const long long own = own_bytes(views), all = own_bytes(db);
    if (own > all / 4) /* what was in the log is written at the start, 4 MB at most here */
        fail_msg("a reader took %lld bytes of its own beside a data base of %lld", own, all);
    dataset_close(d);
    assert_int_equal(own_bytes(views), 0);
    char command[5000];
    snprintf(command, sizeof command, "rmdir '%s'", views); /* nothing is left, folders either */
    assert_int_equal(system(command), 0);
}

/* The footer of a table has no checksum: one wrong byte in it made LevelDB take terabytes, and abort. */
static void an_index_beyond_the_end_of_its_file_is_refused(void **state)
{
    static const uint8_t footer[48] = {8,           8,    16,   0x80, 0x80, 0x80, 0x80, 0x80,
                                       0x10, /* the second size: 2^39 */
                                       [40] = 0x57, 0xfb, 0x80, 0x8b, 0x24, 0x75, 0x47, 0xdb};
    char path[4096], file[4200];
    struct dataset *d = NULL;
    struct err e = {0};
    snprintf(path, sizeof path, "%s/damaged", (char *)*state);
    assert_int_equal(mkdir(path, 0777), 0);
    for (int i = 0; i < 2; i++) {
        snprintf(file, sizeof file, "%s/%s", path, i ? "000005.ldb" : "CURRENT");
        FILE *f = fopen(file, "w");
        assert_non_null(f);
        fwrite(footer, 1, sizeof footer, f);
        fclose(f);
    }
    assert_int_equal(dataset_open(&d, path, &(struct dataset_options){.num_labels = 10}, &e), ERR_DATA);
    if (!strstr(e.text, "000005.ldb' is damaged: its index would lie beyond its 48 bytes"))
        fail_msg("%s", e.text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(an_index_beyond_the_end_of_its_file_is_refused, scratch_make, scratch_drop),
        cmocka_unit_test_setup_teardown(reading_copies_nothing, scratch_make, scratch_drop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
