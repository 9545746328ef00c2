/* Hostile pickles: whatever the bytes are, pickle_read() ends, and what it returns lies within what it says. Seeds are the lines of
 * $FUZZ_CORPUS in hex; they are mutated $FUZZ_RUNS times from $FUZZ_SEED on. */
#include <assert.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/err.h"
#include "worker/ckpt/pickle_read.h"

#define INPUT_BYTES 4096

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct pickle p = {0};
    struct err e = {0};
    int rc = pickle_read(&p, data, n, &e);
    if (rc < 0) {
        assert(e.text[0]);
        return 0;
    }
    assert(p.n > 0);
    for (size_t i = 0; i < p.n; i++) {
        const struct pickled_tensor *t = &p.t[i];
        int64_t bytes, last = t->offset;
        assert(ckpt_tensor_bytes(&t->t, &bytes) == 0 && strlen(t->t.name) > 0 && strlen(t->storage) > 0);
        for (int d = 0; d < t->t.ndim; d++)
            last += t->t.shape[d] ? (t->t.shape[d] - 1) * t->stride[d] : 0;
        assert(bytes == 0 || (t->offset >= 0 && last < t->storage_count));
    }
    pickle_free(&p);
    return 0;
}

#ifndef FUZZ_WITH_LIBFUZZER
struct input {
    uint8_t bytes[INPUT_BYTES];
    size_t n;
};

static struct input corpus[64];
static size_t corpus_n;
static uint64_t rng;

static uint64_t draw(uint64_t below)
{
    rng ^= rng << 13;
    rng ^= rng >> 7;
    rng ^= rng << 17;
    return rng % below;
}

static void read_corpus(const char *path)
{
    static char line[2 * INPUT_BYTES + 2];
    FILE *f = path ? fopen(path, "re") : NULL;
    while (f && corpus_n < sizeof corpus / sizeof *corpus && fgets(line, sizeof line, f)) {
        struct input *in = &corpus[corpus_n++];
        unsigned byte;
        for (const char *at = line; sscanf(at, "%2x", &byte) == 1 && in->n < INPUT_BYTES; at += 2)
            in->bytes[in->n++] = (uint8_t)byte;
    }
    if (f)
        fclose(f);
}

static size_t mutate(uint8_t *b, size_t n, size_t cap)
{
    static const uint8_t opcodes[] = "\x80\x95.(0N\x88\x89JKM\x8aGX\x8c]})ldt\x85\x86\x87"
                                     "aesuqr\x94hjc\x93QRb";
    for (uint64_t k = 1 + draw(6); k > 0; k--) {
        size_t at = n ? draw(n) : 0;
        const uint8_t byte = draw(2) ? opcodes[draw(sizeof opcodes - 1)] : (uint8_t)draw(256);
        const uint64_t what = draw(3);
        if (what == 0 && n) {
            b[at] = byte;
        } else if (what == 1 && n < cap) {
            memmove(b + at + 1, b + at, n - at);
            b[at] = byte;
            n++;
        } else if (n > 1) {
            memmove(b + at, b + at + 1, n - at - 1);
            n--;
        }
    }
    return n;
}

static uint64_t env(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text && *text ? strtoull(text, NULL, 10) : otherwise;
}

int main(void)
{
    uint64_t runs = env("FUZZ_RUNS", 50000), seed = env("FUZZ_SEED", 1), whole = 0;
    static uint8_t b[INPUT_BYTES];
    rng = seed | 1;
    read_corpus(getenv("FUZZ_CORPUS"));
    assert(corpus_n > 0);
    for (size_t i = 0; i < corpus_n; i++) {
        struct pickle p = {0};
        whole += pickle_read(&p, corpus[i].bytes, corpus[i].n, NULL) == 0;
        pickle_free(&p);
        LLVMFuzzerTestOneInput(corpus[i].bytes, corpus[i].n);
    }
    assert(whole > 0); /* else the seeds are no good */
    for (uint64_t i = 0; i < runs; i++) {
        const struct input *from = &corpus[draw(corpus_n)];
        memcpy(b, from->bytes, from->n);
        LLVMFuzzerTestOneInput(b, mutate(b, from->n, sizeof b));
    }
    printf("1..1\nok 1 - %llu hostile pickles leave the reader whole (seed %llu)\n", (unsigned long long)runs,
           (unsigned long long)seed);
    return 0;
}
#endif
