/* Hostile safetensors files: whatever the bytes are, safetensors_open() ends, and each tensor that it lists lies within
 * the file. */
#include <assert.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/base/err.h"
#include "tests/fuzz/driver.h"
#include "worker/ckpt/safetensors.h"

static uint64_t whole; /* how many were read */

static void read_all(struct safetensors *s, size_t n)
{
    for (size_t i = 0; i < safetensors_count(s); i++) {
        const struct ckpt_tensor *t = safetensors_at(s, i);
        struct err e = {0};
        int64_t bytes = -1;
        const int known = ckpt_tensor_bytes(t, &bytes);
        assert(known == 0 && bytes >= 0 && (size_t)bytes <= n && t->name[0]);
        void *data = malloc(bytes ? (size_t)bytes : 1);
        const int rc = data ? safetensors_read(s, i, data, NULL, &e) : -1;
        assert(rc == 0);
        free(data);
        whole++;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static int fd = -1;
    char path[32];
    struct safetensors *s;
    struct err e = {0};
    if (fd < 0)
        fd = memfd_create("safetensors", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, 0) < 0 || pwrite(fd, data, n, 0) != (ssize_t)n)
        fuzz_die("no file in memory");
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (safetensors_open(&s, path, &e) < 0) {
        assert(e.text[0]);
        return 0;
    }
    read_all(s, n);
    safetensors_close(s);
    return 0;
}

#ifndef FUZZ_WITH_LIBFUZZER
static void change(struct fuzz_input *in)
{
    static const char signs[] = "{}[]\",:\\0123456789-.e ";
    assert(whole > 0); /* the corpus has been run: else it is no good */
    for (uint64_t k = 1 + fuzz_draw(4); k > 0 && in->n; k--) {
        const size_t at = fuzz_draw(in->n);
        const uint8_t sign = (uint8_t)signs[fuzz_draw(sizeof signs - 1)];
        if (fuzz_draw(3))
            in->bytes[at] = sign;
        else if (fuzz_draw(2))
            fuzz_insert(in, at, &sign, 1, FUZZ_INPUT_MAX);
        else
            fuzz_remove(in, at);
    }
    const uint64_t header = in->n > 8 ? strlen((char *)in->bytes + 8) : 0; /* a corpus has text up to its data */
    if (in->n > 8 && fuzz_draw(4) && header <= in->n - 8)
        memcpy(in->bytes, &header, sizeof header);
}

int main(void)
{
    return fuzz_main(&(struct fuzz_plan){.runs = 20000, .change = change, .kept = "leave the reader whole"});
}
#endif
