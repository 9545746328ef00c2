/* See driver.h. */
#include "tests/fuzz/driver.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#ifdef __has_feature
#define FUZZ_HAS_FEATURE(x) __has_feature(x)
#else
#define FUZZ_HAS_FEATURE(x) 0
#endif

static uint64_t rng = 1;
static struct fuzz_input **corpus;
static size_t corpus_n;

void fuzz_die(const char *why)
{
    fprintf(stderr, "%s: %s\n", program_invocation_short_name, why);
    abort();
}

void fuzz_seed(uint64_t seed)
{
    rng = seed | 1;
}

uint64_t fuzz_draw(uint64_t below) /* xorshift64* */
{
    rng ^= rng >> 12;
    rng ^= rng << 25;
    rng ^= rng >> 27;
    return (rng * 0x2545f4914f6cdd1du >> 11) % below;
}

void fuzz_insert(struct fuzz_input *in, size_t at, const void *data, size_t n, size_t most)
{
    if (in->n + n > most)
        return;
    memmove(in->bytes + at + n, in->bytes + at, in->n - at);
    memcpy(in->bytes + at, data, n);
    in->n += n;
}

void fuzz_remove(struct fuzz_input *in, size_t at)
{
    if (at < in->n)
        memmove(in->bytes + at, in->bytes + at + 1, --in->n - at);
}

const struct fuzz_input *fuzz_kept(void)
{
    return corpus[fuzz_draw(corpus_n)];
}

static void read_corpus(const char *path)
{
    static char line[2 * FUZZ_INPUT_MAX + 2];
    FILE *f = path ? fopen(path, "re") : NULL;
    if (!f)
        fuzz_die("FUZZ_CORPUS names no file that can be read");
    while (fgets(line, sizeof line, f)) {
        struct fuzz_input *in = calloc(1, sizeof *in);
        unsigned byte;
        corpus = realloc(corpus, (corpus_n + 1) * sizeof *corpus);
        if (!in || !corpus)
            fuzz_die("no memory for the corpus");
        while (in->n < FUZZ_INPUT_MAX && sscanf(line + 2 * in->n, "%2x", &byte) == 1)
            in->bytes[in->n++] = (uint8_t)byte;
        corpus[corpus_n++] = in;
    }
    fclose(f);
    if (corpus_n == 0)
        fuzz_die("the corpus is empty");
}

static void free_corpus(void)
{
    for (size_t i = 0; i < corpus_n; i++)
        free(corpus[i]);
    free(corpus);
}

#if defined(__SANITIZE_ADDRESS__) || FUZZ_HAS_FEATURE(address_sanitizer)
enum { MOST_KB = 1 << 20 }; /* what was freed stays for a while */
#else
enum { MOST_KB = 256 << 10 };
#endif

/* No input decides how much memory is taken. */
static void check_memory(const struct fuzz_input *in)
{
    struct rusage used;
    if (getrusage(RUSAGE_SELF, &used) == 0 && used.ru_maxrss > MOST_KB) {
        fprintf(stderr, "%ld KiB of memory are in use after the %zu bytes ", used.ru_maxrss, in->n);
        for (size_t i = 0; i < in->n; i++)
            fprintf(stderr, "%02x", in->bytes[i]);
        fprintf(stderr, "\n");
        fuzz_die("an input took too much memory");
    }
}

/* From memory of its very size: a sanitizer sees what is read beyond. */
static void run(const struct fuzz_input *in)
{
    uint8_t *copy = malloc(in->n + !in->n);
    if (!copy)
        fuzz_die("no memory for an input");
    memcpy(copy, in->bytes, in->n);
    LLVMFuzzerTestOneInput(copy, in->n);
    free(copy);
    check_memory(in);
}

static uint64_t env(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text && *text ? strtoull(text, NULL, 10) : otherwise;
}

int fuzz_main(const struct fuzz_plan *p)
{
    const uint64_t runs = env("FUZZ_RUNS", p->runs), seed = env("FUZZ_SEED", 1);
    static struct fuzz_input in;
    fuzz_seed(seed);
    read_corpus(getenv("FUZZ_CORPUS"));
    for (size_t i = 0; i < corpus_n; i++)
        run(corpus[i]);
    for (uint64_t i = 0; i < runs; i++) {
        const struct fuzz_input *from = fuzz_kept();
        memcpy(in.bytes, from->bytes, in.n = from->n);
        p->change(&in);
        run(&in);
    }
    printf("1..1\nok 1 - %zu kept and %llu changed inputs %s (seed %llu)\n", corpus_n, (unsigned long long)runs,
           p->kept, (unsigned long long)seed);
    free_corpus();
    return 0;
}
