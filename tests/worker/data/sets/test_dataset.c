/* Every kind of data set through dataset_open(): what it holds, and what is said of damaged ones. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <leveldb/c.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zlib.h>

#include "common/base/buf.h"
#include "common/base/err.h"
#include "tests/worker/data/fixture.h"
#include "tests/worker/scratch/scratch.h"
#include "worker/data/db/db_writer.h"
#include "worker/data/db/make_db.h"
#include "worker/data/image/image.h"
#include "worker/data/sets/dataset.h"

static const char *in(const char *dir, const char *name)
{
    static char path[2][4096];
    static int turn;
    turn ^= 1;
    snprintf(path[turn], sizeof path[turn], "%s/%s", dir, name);
    return path[turn];
}

static struct dataset *open_set(const char *path, const struct dataset_options *o)
{
    struct dataset *d = NULL;
    struct err e = {0};
    if (dataset_open(&d, path, o ? o : &(struct dataset_options){0}, &e) != 0)
        fail_msg("%s: %s", path, e.text);
    return d;
}

static void open_fails(const char *path, const struct dataset_options *o, const char *word)
{
    struct dataset *d = NULL;
    struct err e = {0};
    int rc = dataset_open(&d, path, o ? o : &(struct dataset_options){0}, &e);
    if (rc != ERR_DATA || !strstr(e.text, word))
        fail_msg("got %s '%s', expected ERR_DATA with '%s'", err_name(rc), e.text, word);
}

/* Pixel (0, 0) of sample i. */
static void check_first_pixel(struct dataset *d, size_t i, int want_label, const uint8_t *want, int channels)
{
    struct buf b = {0};
    struct err e = {0};
    struct image im = {0};
    int label = -1;
    if (d->ops->read(d, i, &b, &label, &e) != 0 || image_decode(b.data, b.len, channels, &im, &e) != 0)
        fail_msg("sample %zu: %s", i, e.text);
    assert_int_equal(label, want_label);
    assert_memory_equal(im.px, want, (size_t)channels);
    image_free(&im);
    buf_free(&b);
}

/* --- MNIST */

static void put_idx(const char *dir, const char *prefix, int n, bool zipped)
{
    char name[64], bytes[4096] = "\0\0\x08\x03\0\0\0\0\0\0\0\x02\0\0\0\x03";
    bytes[7] = (char)n;
    for (int i = 0; i < n * 6; i++)
        bytes[16 + i] = (char)(10 * (i / 6) + i % 6);
    snprintf(name, sizeof name, "%s-images-idx3-ubyte", prefix);
    if (zipped) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%s.gz", dir, name);
        gzFile f = gzopen(path, "wb");
        gzwrite(f, bytes, (unsigned)(16 + n * 6));
        gzclose(f);
    } else {
        fixture_file(dir, name, bytes, (size_t)(16 + n * 6));
    }
    char labels[64] = "\0\0\x08\x01";
    labels[7] = (char)n;
    for (int i = 0; i < n; i++)
        labels[8 + i] = (char)(9 - i);
    snprintf(name, sizeof name, "%s-labels-idx1-ubyte", prefix);
    fixture_file(dir, name, labels, (size_t)(8 + n));
}

static void mnist_is_read_plain_and_zipped(void **state)
{
    put_idx(*state, "train", 3, false);
    put_idx(*state, "t10k", 2, true);
    struct dataset *train = open_set(*state, NULL);
    assert_int_equal(train->n, 3);
    assert_int_equal(train->classes, 10);
    assert_string_equal(train->class_names[7], "7");
    check_first_pixel(train, 1, 8, (uint8_t[]){10}, 1);
    check_first_pixel(train, 2, 7, (uint8_t[]){20, 20, 20}, 3);
    struct dataset *test =
        open_set(*state, &(struct dataset_options){.testing = true, .class_names = train->class_names, .classes = 10});
    assert_int_equal(test->n, 2);
    check_first_pixel(test, 0, 9, (uint8_t[]){0}, 1);
    dataset_close(test);
    dataset_close(train);
}

static void damaged_mnist_is_told(void **state)
{
    put_idx(*state, "train", 3, false);
    open_fails(*state, &(struct dataset_options){.testing = true}, "t10k-images-idx3-ubyte' (or .gz) does not exist");
    fixture_file(*state, "train-labels-idx1-ubyte", "\0\0\x08\x01\0\0\0\x02\1\1", 10);
    open_fails(*state, NULL, "holds 2 labels for 3 pictures");
    fixture_file(*state, "train-labels-idx1-ubyte", "\0\0\x08\x01\0\0\0\x03\1\1", 10);
    open_fails(*state, NULL, "cut short");
    fixture_file(*state, "train-labels-idx1-ubyte", "\0\0\x08\x01\0\0\0\x03\1\1\x0b", 11);
    open_fails(*state, NULL, "has label 11");
    fixture_file(*state, "train-labels-idx1-ubyte", "GIF89a", 6);
    open_fails(*state, NULL, "no IDX file");
    /* 50,000,000 pictures of 4096 x 4096: not a byte is taken for them */
    fixture_file(*state, "train-images-idx3-ubyte", "\0\0\x08\x03\x02\xfa\xf0\x80\0\0\x10\0\0\0\x10\0", 16);
    open_fails(*state, NULL, "it claims 838860800000000 bytes of pictures and has 16");
}

/* --- CIFAR-10 */

static void put_batch(const char *dir, const char *name, int label, uint8_t red)
{
    static char record[3073];
    memset(record, 0, sizeof record);
    record[0] = (char)label;
    record[1] = (char)red;
    record[1 + 1024] = 2;
    record[1 + 2048] = 3;
    fixture_file(dir, name, record, sizeof record);
}

static void cifar10_is_read_with_its_names(void **state)
{
    char name[64];
    for (int i = 1; i <= 5; i++) {
        snprintf(name, sizeof name, "cifar-10-batches-bin/data_batch_%d.bin", i);
        put_batch(*state, name, i, (uint8_t)(100 + i));
    }
    put_batch(*state, "cifar-10-batches-bin/test_batch.bin", 9, 7);
    struct dataset *d = open_set(*state, NULL);
    assert_int_equal(d->n, 5);
    assert_string_equal(d->class_names[0], "airplane");
    check_first_pixel(d, 4, 5, (uint8_t[]){105, 2, 3}, 3);
    dataset_close(d);
    d = open_set(*state, &(struct dataset_options){.testing = true});
    check_first_pixel(d, 0, 9, (uint8_t[]){7, 2, 3}, 3);
    dataset_close(d);
    fixture_file(*state, "cifar-10-batches-bin/test_batch.bin", "x", 1);
    open_fails(*state, &(struct dataset_options){.testing = true}, "has 1 bytes (expected a multiple of 3073)");
}

/* --- data bases */

static void put_pictures(const char *dir)
{
    static const struct fixture pictures[] = {{.w = 20, .h = 12, .colour = {200, 30, 40}},
                                              {.w = 12, .h = 20, .colour = {10, 220, 40}}};
    struct buf b = {0};
    for (int i = 0; i < 6; i++) {
        char name[64];
        buf_clear(&b);
        fixture_jpeg(&b, &pictures[i % 2]);
        snprintf(name, sizeof name, "src/%s/%d.jpg", i % 2 ? "bee" : "ant", i);
        fixture_file(dir, name, b.data, b.len);
    }
    buf_free(&b);
}

static void make(const char *dir, const char *dst, struct make_db_options o)
{
    char src[4096], path[4096];
    struct make_db_result r;
    struct err e = {0};
    snprintf(src, sizeof src, "%s/src", dir);
    snprintf(path, sizeof path, "%s/%s", dir, dst);
    o.src = src;
    o.dst = path;
    if (make_db(&o, &r, &e) < 0)
        fail_msg("%s", e.text);
    assert_int_equal(r.written, 6);
    assert_int_equal(r.left_out, 0);
}

static void same_samples(struct dataset *a, struct dataset *b)
{
    struct buf x = {0}, y = {0};
    struct err e = {0};
    int la, lb;
    assert_int_equal(a->n, b->n);
    assert_int_equal(a->classes, b->classes);
    for (size_t i = 0; i < a->n; i++) {
        buf_clear(&x);
        buf_clear(&y);
        assert_int_equal(a->ops->read(a, i, &x, &la, &e), 0);
        assert_int_equal(b->ops->read(b, i, &y, &lb, &e), 0);
        assert_int_equal(la, lb);
        assert_int_equal(x.len, y.len);
        assert_memory_equal(x.data, y.data, x.len);
    }
    buf_free(&x);
    buf_free(&y);
}

static void both_data_bases_hold_what_the_folder_held(void **state)
{
    static const struct db_writer_ops *const writers[] = {&db_writer_lmdb, &db_writer_leveldb};
    put_pictures(*state);
    struct dataset *folder = open_set(in(*state, "src"), NULL);
    for (int i = 0; i < 4; i++) {
        char name[16];
        snprintf(name, sizeof name, "db%d", i);
        make(*state, name, (struct make_db_options){.writer = writers[i % 2], .format = (enum record_format)(i / 2)});
        struct dataset *d = open_set(in(*state, name), NULL);
        assert_string_equal(d->ops->name, writers[i % 2]->name);
        assert_string_equal(d->class_names[1], "bee");
        assert_non_null(strstr(d->ops->sample_name(d, 0), "00000000_ant/0.jpg"));
        same_samples(folder, d);
        dataset_close(d);
    }
    dataset_close(folder);
}

static void pixels_may_be_stored_scaled(void **state)
{
    put_pictures(*state);
    make(*state, "raw", (struct make_db_options){.writer = &db_writer_lmdb, .raw = true, .resize = 6});
    struct dataset *d = open_set(in(*state, "raw"), NULL);
    struct buf b = {0};
    struct err e = {0};
    int label;
    assert_int_equal(d->ops->read(d, 0, &b, &label, &e), 0);
    assert_memory_equal(b.data, "P6\n10 6\n255\n", 12);
    buf_free(&b);
    dataset_close(d);
}

static void a_shuffle_keeps_every_picture(void **state)
{
    put_pictures(*state);
    make(*state, "mixed", (struct make_db_options){.writer = &db_writer_lmdb, .shuffle = true, .seed = 3});
    struct dataset *d = open_set(in(*state, "mixed"), NULL);
    struct buf b = {0};
    struct err e = {0};
    int label, bees = 0, moved = 0;
    for (size_t i = 0; i < d->n; i++) {
        buf_clear(&b);
        assert_int_equal(d->ops->read(d, i, &b, &label, &e), 0);
        bees += label;
        moved += label != (int)(i / 3);
    }
    assert_int_equal(bees, 3);
    assert_true(moved > 0);
    buf_free(&b);
    dataset_close(d);
}

/* A data base made elsewhere: no classes.txt. */
static void a_foreign_data_base_needs_num_labels(void **state)
{
    put_pictures(*state);
    make(*state, "db", (struct make_db_options){.writer = &db_writer_lmdb});
    unlink(in(*state, "db/classes.txt"));
    open_fails(in(*state, "db"), NULL, "give --num-labels");
    struct dataset *d = open_set(in(*state, "db"), &(struct dataset_options){.num_labels = 1});
    struct buf b = {0};
    struct err e = {0};
    int label;
    assert_int_equal(d->ops->read(d, 5, &b, &label, &e), ERR_DATA);
    assert_string_equal(e.text, "label 1 of a set of 1 classes");
    buf_free(&b);
    dataset_close(d);
}

static void a_cut_lmdb_is_refused(void **state)
{
    struct stat st;
    put_pictures(*state);
    make(*state, "db", (struct make_db_options){.writer = &db_writer_lmdb});
    assert_int_equal(stat(in(*state, "db/data.mdb"), &st), 0);
    assert_int_equal(truncate(in(*state, "db/data.mdb"), st.st_size - 4096), 0);
    open_fails(in(*state, "db"), NULL, "is cut short");
    assert_int_equal(truncate(in(*state, "db/data.mdb"), 100), 0);
    open_fails(in(*state, "db"), NULL, "cannot read the LMDB");
}

/* Another user may have put it there, and LMDB would write to where it leads. */
static void a_lock_file_that_is_a_link_is_not_written_to(void **state)
{
    struct dataset *d;
    struct stat st;
    struct err e;
    char lock[4096];
    put_pictures(*state);
    make(*state, "db", (struct make_db_options){.writer = &db_writer_lmdb});
    snprintf(lock, sizeof lock, "%s", in(*state, "db/lock.mdb"));
    unlink(lock);
    assert_int_equal(symlink("../victim", lock), 0);
    assert_int_equal(close(open(in(*state, "victim"), O_WRONLY | O_CREAT, 0600)), 0);
    assert_int_equal(dataset_open(&d, in(*state, "db"), &(struct dataset_options){0}, &e), 0);
    dataset_close(d);
    assert_int_equal(stat(in(*state, "victim"), &st), 0);
    assert_int_equal(st.st_size + st.st_blocks, 0);
}

/* A child has the data base open, through LevelDB itself or as we read it, while the parent goes on. */
struct holder {
    pid_t pid;
    int over[2];
};

static void hold(struct holder *h, const char *path, bool as_reader)
{
    int ready[2];
    char byte = 0;
    assert_int_equal(pipe(ready) + pipe(h->over), 0);
    h->pid = fork();
    if (h->pid == 0) {
        struct dataset *d;
        struct err e;
        char *why = NULL;
        byte = as_reader ? dataset_open(&d, path, &(struct dataset_options){0}, &e) == 0
                         : leveldb_open(leveldb_options_create(), path, &why) != NULL;
        close(h->over[1]);
        _exit(write(ready[1], &byte, 1) == 1 && read(h->over[0], &byte, 1) == 0 ? 0 : 1);
    }
    close(ready[1]);
    assert_int_equal(read(ready[0], &byte, 1), 1);
    assert_int_equal(byte, 1);
    close(ready[0]);
}

static void let_go(struct holder *h)
{
    close(h->over[0]);
    close(h->over[1]);
    waitpid(h->pid, NULL, 0);
}

static void a_leveldb_that_another_process_may_change_is_refused(void **state)
{
    struct holder h;
    char pid[32];
    put_pictures(*state);
    make(*state, "db", (struct make_db_options){.writer = &db_writer_leveldb});
    hold(&h, in(*state, "db"), false);
    snprintf(pid, sizeof pid, "process %d,", (int)h.pid);
    open_fails(in(*state, "db"), NULL, pid);
    open_fails(in(*state, "db"), NULL, "db/LOCK");
    let_go(&h);
}

static uint32_t fingerprint(const char *dir)
{
    char command[5000], line[64] = {0};
    snprintf(command, sizeof command, "cd '%s' && (ls -l --time-style=full-iso; cat *) | cksum", dir);
    FILE *p = popen(command, "r");
    assert_non_null(p);
    assert_non_null(fgets(line, sizeof line, p));
    pclose(p);
    return (uint32_t)strtoul(line, NULL, 10);
}

static void many_processes_read_a_leveldb_and_leave_it_as_it_was(void **state)
{
    struct holder h;
    put_pictures(*state);
    make(*state, "db", (struct make_db_options){.writer = &db_writer_leveldb});
    const uint32_t before = fingerprint(in(*state, "db"));
    assert_int_equal(mkdir(in(*state, "views"), 0777), 0);
    setenv("TMPDIR", in(*state, "views"), 1);
    hold(&h, in(*state, "db"), true);
    struct dataset *d[2];
    for (int i = 0; i < 2; i++) {
        struct buf b = {0};
        struct err e;
        int label;
        if (dataset_open(&d[i], in(*state, "db"), &(struct dataset_options){0}, &e) != 0 ||
            d[i]->ops->read(d[i], 0, &b, &label, &e) != 0)
            fail_msg("%s", e.text);
        buf_free(&b);
    }
    dataset_close(d[0]);
    dataset_close(d[1]);
    let_go(&h);
    unsetenv("TMPDIR");
    assert_int_equal(fingerprint(in(*state, "db")), before);
}

static void an_existing_data_base_is_left_alone(void **state)
{
    struct make_db_result r;
    struct err e = {0};
    char src[4096];
    put_pictures(*state);
    snprintf(src, sizeof src, "%s/src", (char *)*state);
    make(*state, "db", (struct make_db_options){.writer = &db_writer_lmdb});
    const struct make_db_options o = {.src = src, .dst = in(*state, "db"), .writer = &db_writer_lmdb};
    assert_int_equal(make_db(&o, &r, &e), ERR_OUTPUT);
    assert_non_null(strstr(e.text, "exists already"));
}

static void damaged_pictures_are_left_out_or_refused(void **state)
{
    struct make_db_result r;
    struct err e = {0};
    char src[4096], dst[4096];
    put_pictures(*state);
    fixture_file(*state, "src/ant/z.jpg", "\xff\xd8\xff nothing", 11);
    snprintf(src, sizeof src, "%s/src", (char *)*state);
    snprintf(dst, sizeof dst, "%s/db", (char *)*state);
    struct make_db_options o = {.src = src, .dst = dst, .writer = &db_writer_lmdb, .strict = true};
    assert_int_equal(make_db(&o, &r, &e), ERR_DATA);
    assert_non_null(strstr(e.text, "z.jpg"));
    assert_int_equal(access(dst, F_OK), -1);
    o.strict = false;
    int saved = fixture_capture_stderr();
    assert_int_equal(make_db(&o, &r, &e), 0);
    assert_true(fixture_captured_bytes(saved) > 0);
    assert_int_equal(r.written, 6);
    assert_int_equal(r.left_out, 1);
}

static void made_up_pictures_need_nothing(void **state)
{
    struct dataset *d =
        open_set("null", &(struct dataset_options){.num_labels = 7, .null_samples = 20, .null_size = 16});
    struct buf a = {0}, b = {0};
    struct err e = {0};
    struct image im;
    int label;
    assert_int_equal(d->n, 20);
    assert_int_equal(d->classes, 7);
    assert_int_equal(d->ops->read(d, 9, &a, &label, &e), 0);
    assert_int_equal(label, 2);
    assert_int_equal(d->ops->read(d, 9, &b, &label, &e), 0);
    assert_memory_equal(a.data, b.data, a.len);
    assert_int_equal(image_decode(a.data, a.len, 3, &im, &e), 0);
    assert_int_equal(im.w, 16);
    image_free(&im);
    buf_free(&a);
    buf_free(&b);
    dataset_close(d);
}

static void a_missing_path_is_named(void **state)
{
    open_fails("/nonexistent/data", NULL, "'/nonexistent/data' does not exist");
    open_fails(*state, &(struct dataset_options){.kind = DATASET_LMDB}, "is no LMDB");
    open_fails(*state, &(struct dataset_options){.kind = DATASET_LEVELDB}, "is no LevelDB");
    assert_int_equal(rmdir(*state), 0); /* nothing was left in it */
    assert_int_equal(mkdir(*state, 0777), 0);
    open_fails(*state, &(struct dataset_options){.kind = DATASET_MNIST}, "does not exist");
    open_fails(*state, &(struct dataset_options){.kind = DATASET_CIFAR10}, "does not exist");
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, scratch_make, scratch_drop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(mnist_is_read_plain_and_zipped),
        CASE(damaged_mnist_is_told),
        CASE(cifar10_is_read_with_its_names),
        CASE(both_data_bases_hold_what_the_folder_held),
        CASE(pixels_may_be_stored_scaled),
        CASE(a_shuffle_keeps_every_picture),
        CASE(a_foreign_data_base_needs_num_labels),
        CASE(a_cut_lmdb_is_refused),
        CASE(a_lock_file_that_is_a_link_is_not_written_to),
        CASE(a_leveldb_that_another_process_may_change_is_refused),
        CASE(many_processes_read_a_leveldb_and_leave_it_as_it_was),
        CASE(an_existing_data_base_is_left_alone),
        CASE(damaged_pictures_are_left_out_or_refused),
        CASE(made_up_pictures_need_nothing),
        CASE(a_missing_path_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
