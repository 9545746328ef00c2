/* Hostile .pth files: whatever is in one, torch_zip_open() and torch_zip_read() end, and what they return was in it.
 *
 * An input is a pickle, for which a sound zip is made with storages "0" and "1"; before the pickle stands how many
 * bytes of the finished file are damaged (one byte), then for each its place (two bytes, little end first) and its new
 * value (one byte). */
#include <assert.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <zip.h>

#include "common/base/err.h"
#include "tests/fuzz/driver.h"
#include "worker/weights/torch_zip.h"

#define INPUT_BYTES 4096
#define DAMAGE_BYTES 3
#define FILE_BYTES (INPUT_BYTES + 4096)
#define STORAGE_BYTES 64
#define STORED 0xa5 /* every byte of a storage: what lies beside it is not all of these */

static uint64_t whole; /* how many were read */

static void add(zip_t *z, const char *name, const void *data, size_t n)
{
    zip_source_t *s = zip_source_buffer(z, data, n, 0);
    const zip_int64_t i = s ? zip_file_add(z, name, s, 0) : -1;
    if (i < 0 || zip_set_file_compression(z, (zip_uint64_t)i, ZIP_CM_STORE, 0) < 0)
        fuzz_die(zip_strerror(z));
}

/* Its size. */
static size_t make_file(uint8_t file[FILE_BYTES], const uint8_t *pickle, size_t n)
{
    uint8_t storage[STORAGE_BYTES];
    memset(storage, STORED, sizeof storage);
    zip_source_t *into = zip_source_buffer_create(NULL, 0, 0, NULL);
    zip_t *z = into ? zip_open_from_source(into, ZIP_TRUNCATE, NULL) : NULL;
    if (!z)
        fuzz_die("no zip in memory");
    zip_source_keep(into);
    add(z, "archive/data.pkl", pickle, n);
    add(z, "archive/byteorder", "little", 6);
    add(z, "archive/data/0", storage, sizeof storage);
    add(z, "archive/data/1", storage, sizeof storage);
    if (zip_close(z) < 0 || zip_source_open(into) < 0)
        fuzz_die("the zip cannot be closed");
    const zip_int64_t got = zip_source_read(into, file, FILE_BYTES);
    if (got <= 0 || got == FILE_BYTES)
        fuzz_die("the zip cannot be read back");
    zip_source_close(into);
    zip_source_free(into);
    return (size_t)got;
}

/* From memory of its very size, as the driver does. */
static void read_tensor(struct torch_zip *z, size_t i, bool damaged)
{
    struct err e = {0};
    int64_t bytes;
    const int known = ckpt_tensor_bytes(torch_zip_at(z, i), &bytes);
    assert(known == 0);
    uint8_t *data = malloc(bytes ? (size_t)bytes : 1);
    if (!data)
        fuzz_die("no memory for a tensor");
    const int rc = torch_zip_read(z, i, data, &e);
    assert(rc == 0 || e.text[0]);
    whole += rc == 0;
    for (int64_t k = 0; k < bytes && rc == 0 && !damaged; k++)
        assert(data[k] == STORED);
    free(data);
}

static void read_file(const char *path, bool damaged)
{
    struct torch_zip *z;
    struct err e = {0};
    if (torch_zip_open(&z, path, NULL, &e) < 0) {
        assert(e.text[0]);
        return;
    }
    for (size_t i = 0; i < torch_zip_count(z); i++)
        read_tensor(z, i, damaged);
    torch_zip_close(z);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static uint8_t file[FILE_BYTES];
    static int fd = -1;
    char path[32];
    const size_t damages = n ? data[0] : 0, head = 1 + damages * DAMAGE_BYTES;
    if (n < head || n - head > INPUT_BYTES)
        return 0;
    const size_t bytes = make_file(file, data + head, n - head);
    for (size_t i = 0; i < damages; i++) {
        const uint8_t *d = data + 1 + i * DAMAGE_BYTES;
        file[(d[0] | (size_t)d[1] << 8) % bytes] = d[2];
    }
    if (fd < 0)
        fd = memfd_create("pth", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, 0) < 0 || pwrite(fd, file, bytes, 0) != (ssize_t)bytes)
        fuzz_die("no file in memory");
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    read_file(path, damages > 0);
    return 0;
}

#ifndef FUZZ_WITH_LIBFUZZER
static void damage(struct fuzz_input *in)
{
    const uint8_t d[] = {(uint8_t)fuzz_draw(256), (uint8_t)fuzz_draw(256), (uint8_t)fuzz_draw(256)};
    fuzz_insert(in, 1, d, sizeof d, INPUT_BYTES);
    in->bytes[0]++;
}

/* Numbers of a byte and keys are what sizes, strides and storages are made of. */
static void change_pickle(struct fuzz_input *in)
{
    const size_t head = 1 + in->bytes[0] * (size_t)DAMAGE_BYTES;
    size_t at = head + fuzz_draw(in->n - head);
    while (at + 1 < in->n && in->bytes[at] != 'K' && in->bytes[at] != '0' && fuzz_draw(256))
        at++;
    if (in->bytes[at] == 'K' && at + 1 < in->n)
        in->bytes[at + 1] = (uint8_t)fuzz_draw(fuzz_draw(2) ? 32 : 256);
    else
        in->bytes[at] = (uint8_t)(in->bytes[at] == '0' ? '0' + fuzz_draw(2) : fuzz_draw(256));
}

static void change(struct fuzz_input *in)
{
    assert(whole > 0); /* the corpus has been run: else it is no good */
    for (uint64_t k = fuzz_draw(2) ? 1 + fuzz_draw(4) : 0; k > 0; k--)
        damage(in);
    for (uint64_t k = 1 + fuzz_draw(8); k > 0; k--)
        change_pickle(in);
}

int main(void)
{
    return fuzz_main(&(struct fuzz_plan){.runs = 10000, .change = change, .kept = "leave the reader whole"});
}
#endif
