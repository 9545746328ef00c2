/* Hostile tar files as data sets: whatever the bytes are, dataset_open() ends, and each sample that it lists can be
 * read or has a sentence why not.
 *
 * A header has a sum: the changes below set it right most of the time, or few would be seen behind it. */
#include <assert.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/err.h"
#include "tests/fuzz/driver.h"
#include "worker/data/sets/dataset.h"

enum { BLOCK = 512, SUM_AT = 148, SUM_BYTES = 8, MAGIC_AT = 257 };

static uint64_t whole; /* samples that were read */
static char path[] = "/tmp/fuzz_tar.XXXXXX.tar";

static void remove_file(void)
{
    unlink(path);
}

static void write_file(const void *data, size_t n)
{
    static int fd = -1;
    if (fd < 0) {
        fd = mkstemps(path, 4);
        atexit(remove_file);
    }
    if (fd < 0 || ftruncate(fd, 0) < 0 || pwrite(fd, data, n, 0) != (ssize_t)n)
        fuzz_die("a file cannot be written");
}

static void read_all(struct dataset *d)
{
    struct buf picture = {0};
    for (size_t i = 0; i < d->n; i++) {
        struct err e = {0};
        int label = -1;
        const int known = d->ops->label(d, i);
        buf_clear(&picture);
        const int rc = d->ops->read(d, i, &picture, &label, &e);
        assert(rc == 0 || e.text[0]);
        assert(rc < 0 || (label >= 0 && label < d->classes && label == known));
        assert(d->ops->sample_name(d, i)[0]);
        whole += rc == 0;
    }
    buf_free(&picture);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const struct dataset_options o = {.kind = DATASET_TAR};
    struct dataset *d;
    struct err e = {0};
    write_file(data, n);
    const int rc = dataset_open(&d, path, &o, &e);
    assert(rc == 0 || (rc == ERR_DATA && e.text[0]));
    if (rc == 0) {
        read_all(d);
        dataset_close(d);
    }
    return 0;
}

#ifndef FUZZ_WITH_LIBFUZZER
static void set_sums(struct fuzz_input *in)
{
    for (size_t at = 0; at + BLOCK <= in->n; at += BLOCK) {
        uint8_t *h = in->bytes + at;
        unsigned sum = 0;
        if (memcmp(h + MAGIC_AT, "ustar", 5) != 0)
            continue;
        memset(h + SUM_AT, ' ', SUM_BYTES);
        for (int i = 0; i < BLOCK; i++)
            sum += h[i];
        char text[SUM_BYTES + 1];
        snprintf(text, sizeof text, "%06o", sum);
        memcpy(h + SUM_AT, text, 7);
    }
}

/* A byte of a name, a size, a type, a prefix, or of what lies between headers; a block more or less. */
static void change(struct fuzz_input *in)
{
    static const uint8_t signs[] = "0123457 xgLKSV/.=\n\200\377-9abcls";
    assert(whole > 0); /* the corpus has been run: else it is no good */
    for (uint64_t k = 1 + fuzz_draw(4); k > 0 && in->n; k--) {
        const size_t block = fuzz_draw(in->n) / BLOCK * BLOCK;
        size_t at = block + (fuzz_draw(2) ? fuzz_draw(BLOCK) : (size_t[]){0, 124, 135, 156, 345, 30}[fuzz_draw(6)]);
        at = at < in->n ? at : in->n - 1;
        const uint8_t sign = fuzz_draw(3) ? signs[fuzz_draw(sizeof signs - 1)] : (uint8_t)fuzz_draw(256);
        if (fuzz_draw(6))
            in->bytes[at] = sign;
        else if (fuzz_draw(2))
            fuzz_insert(in, block, in->bytes, BLOCK, FUZZ_INPUT_MAX);
        else
            fuzz_remove(in, at);
    }
    if (fuzz_draw(8))
        set_sums(in);
}

int main(void)
{
    return fuzz_main(&(struct fuzz_plan){.runs = 20000, .change = change, .kept = "leave the reader of tars whole"});
}
#endif
