/* The request parser against hostile bytes: whatever comes, it neither crashes nor takes more memory than was received, and what it
 * says does not depend on how the bytes were cut.
 *
 * With clang and -fsanitize=fuzzer this is a libFuzzer target; with main() below it runs the kept corpus, then mutates it by a seed (FUZZ_RUNS,
 * FUZZ_SEED). FUZZ_CORPUS: the file, a line of hexadecimal digits each. */
#include "common/buf.h"
#include "common/err.h"
#include "rendezvousd/request.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static const struct request_limits limits = {.max_bytes = 2048, .max_args = 32};

static void die(const char *why)
{
    fprintf(stderr, "fuzz_request: %s\n", why);
    abort();
}

/* cuts: bytes that say how long each piece is. */
static void parse(const uint8_t *data, size_t n, const uint8_t *cuts, size_t cut_count, struct buf *out)
{
    struct request_parser p;
    struct request rq;
    struct err e;
    int rc = 0;
    request_parser_init(&p, &limits);
    for (size_t at = 0, i = 0; at < n && rc >= 0; i++) {
        size_t len = cut_count ? cuts[i % cut_count] % 7u + 1 : n;
        len = len < n - at ? len : n - at;
        if (request_feed(&p, data + at, len) < 0)
            die("a piece within the limits was not taken");
        at += len;
        while ((rc = request_next(&p, &rq, &e)) == 1) {
            if (rq.argc < 1 || rq.argc > limits.max_args)
                die("a request has an impossible number of arguments");
            for (size_t k = 0; k < rq.argc; k++) {
                buf_printf(out, "%zu:", rq.argv[k].n);
                buf_add(out, rq.argv[k].p, rq.argv[k].n);
            }
            buf_addstr(out, ";");
        }
        if (request_memory(&p) > 4 * n + 64 * (sizeof(struct request_arg) + sizeof(size_t)) + 128)
            die("memory grew beyond what was received");
    }
    if (rc < 0)
        buf_addstr(out, e.text);
    request_parser_free(&p);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct buf whole = {0}, cut = {0};
    if (n == 0 || n > 4096)
        return 0;
    parse(data, n, NULL, 0, &whole);
    parse(data, n, data, n, &cut);
    if (whole.len != cut.len || (whole.len && memcmp(whole.data, cut.data, whole.len) != 0))
        die("the requests depend on how the bytes were cut");
    buf_free(&whole);
    buf_free(&cut);
    return 0;
}

#ifndef FUZZ_WITH_LIBFUZZER
static uint64_t rng;

static uint64_t draw(uint64_t below) /* xorshift64* */
{
    rng ^= rng >> 12;
    rng ^= rng << 25;
    rng ^= rng >> 27;
    return (rng * 0x2545f4914f6cdd1du >> 11) % below;
}

enum { MAX_CORPUS = 4096, INPUT_BYTES = 512 };

static struct input {
    uint8_t bytes[INPUT_BYTES];
    size_t n;
} corpus[MAX_CORPUS];
static size_t corpus_n;

static void read_corpus(const char *path)
{
    static char line[2 * INPUT_BYTES + 2];
    FILE *f = path ? fopen(path, "r") : NULL;
    if (!f)
        die("FUZZ_CORPUS names no file that can be read");
    while (corpus_n < MAX_CORPUS && fgets(line, sizeof line, f)) {
        struct input *in = &corpus[corpus_n++];
        unsigned byte;
        while (in->n < INPUT_BYTES && sscanf(line + 2 * in->n, "%2x", &byte) == 1)
            in->bytes[in->n++] = (uint8_t)byte;
    }
    fclose(f);
    if (corpus_n == 0)
        die("the corpus is empty");
}

static size_t mutate(uint8_t *b, size_t n, size_t cap)
{
    static const char alphabet[] = "*$\r\n0123456789-'\"\\x aPI";
    for (uint64_t k = draw(6); k > 0; k--) {
        size_t at = n ? draw(n) : 0;
        switch (draw(4)) {
        case 0:
            if (n)
                b[at] = draw(2) ? (uint8_t)alphabet[draw(sizeof alphabet - 1)] : (uint8_t)draw(256);
            break;
        case 1:
            if (n < cap) {
                memmove(b + at + 1, b + at, n - at);
                b[at] = (uint8_t)alphabet[draw(sizeof alphabet - 1)];
                n++;
            }
            break;
        case 2:
            if (n > 1) {
                memmove(b + at, b + at + 1, n - at - 1);
                n--;
            }
            break;
        default: {
            const struct input *more = &corpus[draw(corpus_n)];
            if (n + more->n <= cap) {
                memcpy(b + n, more->bytes, more->n);
                n += more->n;
            }
        }
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
    uint64_t runs = env("FUZZ_RUNS", 100000), seed = env("FUZZ_SEED", 1);
    uint8_t b[INPUT_BYTES];
    rng = seed | 1;
    read_corpus(getenv("FUZZ_CORPUS"));
    for (size_t i = 0; i < corpus_n; i++)
        LLVMFuzzerTestOneInput(corpus[i].bytes, corpus[i].n);
    for (uint64_t i = 0; i < runs; i++) {
        const struct input *from = &corpus[draw(corpus_n)];
        memcpy(b, from->bytes, from->n);
        LLVMFuzzerTestOneInput(b, mutate(b, from->n, sizeof b));
    }
    printf("1..1\nok 1 - %llu hostile inputs leave the parser whole (seed %llu)\n", (unsigned long long)runs,
           (unsigned long long)seed);
    return 0;
}
#endif
