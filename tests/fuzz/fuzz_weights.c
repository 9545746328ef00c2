/* Hostile files of weights of any kind, mostly of torch before 1.6 and indexes of several files: whatever the bytes
 * are, weights_open() ends, and each tensor that it lists can be read or has a sentence why not.
 *
 * What begins with '{' is written as an index beside a.safetensors and b.safetensors. */
#include <assert.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/err.h"
#include "tests/fuzz/driver.h"
#include "worker/weights/weights.h"

#define PATH_BYTES 128

static uint64_t whole; /* tensors that were read */
static char dir[] = "/tmp/fuzz_weights.XXXXXX";

static char *path_of(const char *name, char out[PATH_BYTES])
{
    snprintf(out, PATH_BYTES, "%s/%s", dir, name);
    return out;
}

static void write_file(const char *path, const void *data, size_t n)
{
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0 || write(fd, data, n) != (ssize_t)n || close(fd) < 0)
        fuzz_die("a file cannot be written");
}

static void remove_folder(void)
{
    static const char *const names[] = {"a.safetensors", "b.safetensors", "x.index.json", "x"};
    char path[PATH_BYTES];
    for (int i = 0; i < 4; i++)
        unlink(path_of(names[i], path));
    rmdir(dir);
}

static void make_folder(void)
{
    static const float data[] = {1, 2, 3, 4};
    struct ckpt_tensor w = {.name = "w", .dtype = DT_F32, .ndim = 2, .shape = {2, 2}, .data = data}, v = w;
    struct err e;
    char path[PATH_BYTES];
    strcpy(v.name, "model.v");
    if (!mkdtemp(dir) || safetensors_write(path_of("a.safetensors", path), &w, 1, NULL, &e) < 0 ||
        safetensors_write(path_of("b.safetensors", path), &v, 1, NULL, &e) < 0)
        fuzz_die("no folder for files");
    atexit(remove_folder);
}

static void read_all(struct weights *w)
{
    static const char *const wanted[] = {"v", "w"};
    const char *prefix;
    struct err e = {0};
    size_t at;
    for (size_t i = 0; i < weights_count(w); i++) {
        int64_t bytes;
        const int known = ckpt_tensor_bytes(weights_at(w, i), &bytes);
        assert(known == 0);
        void *data = malloc(bytes ? (size_t)bytes : 1);
        if (!data)
            fuzz_die("no memory for a tensor");
        const int rc = weights_read(w, i, data, &e);
        assert(rc == 0 || e.text[0]);
        whole += rc == 0;
        free(data);
    }
    if (weights_choose_prefix(w, wanted, 2, 1, &prefix, &e) == 0 && weights_find(w, "w", &at))
        assert(strncmp(weights_at(w, at)->name, prefix, strlen(prefix)) == 0 && weights_was_found(w, at));
    const int rc = weights_drop_wrappers(w, &e);
    assert(rc == 0 || e.text[0]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const char *const parts[] = {NULL, "model", "module.encoder_q"};
    char path[PATH_BYTES];
    if (strstr(dir, "XXXXXX"))
        make_folder();
    path_of(n > 0 && data[0] == '{' ? "x.index.json" : "x", path);
    write_file(path, data, n);
    for (int i = 0; i < 3; i++) {
        struct weights *w;
        struct err e = {0};
        if (weights_open(&w, path, parts[i], &e) < 0) {
            assert(e.text[0]);
            continue;
        }
        read_all(w);
        weights_close(w);
    }
    return 0;
}

#ifndef FUZZ_WITH_LIBFUZZER
static void change(struct fuzz_input *in)
{
    static const char signs[] = "{}[]\",:\\0123456789KJXNQRctub.()]}q\x8a\x80\x85\x86 ";
    assert(whole > 0); /* the corpus has been run: else it is no good */
    for (uint64_t k = 1 + fuzz_draw(4); k > 0 && in->n; k--) {
        const size_t at = fuzz_draw(in->n);
        const uint8_t sign = fuzz_draw(3) ? (uint8_t)signs[fuzz_draw(sizeof signs - 1)] : (uint8_t)fuzz_draw(256);
        if (fuzz_draw(3))
            in->bytes[at] = sign;
        else if (fuzz_draw(2))
            fuzz_insert(in, at, &sign, 1, FUZZ_INPUT_MAX);
        else
            fuzz_remove(in, at);
    }
}

int main(void)
{
    return fuzz_main(&(struct fuzz_plan){.runs = 5000, .change = change, .kept = "leave the readers whole"});
}
#endif
