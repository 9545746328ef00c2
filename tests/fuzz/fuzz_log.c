/* The decision log of rendezvousd against hostile bytes: a file is loaded or refused with a sentence; what was loaded keeps every rule of the
 * machine, and what is written of it loads again as the same.
 *
 * The first byte says how: odd, the rest is a file; even, the rest is the text of records (cut at each byte 1), framed here, so that the fuzzer
 * need not find checksums. With clang and -fsanitize=fuzzer this is a libFuzzer target; with main() below it mutates its corpus (FUZZ_CORPUS, one
 * entry a line in hex) by a seed (FUZZ_RUNS, FUZZ_SEED). */
#include "common/buf.h"
#include "common/err.h"
#include "common/log.h"
#include "rendezvousd/jobs_impl.h"
#include "rendezvousd/persist.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void die(const char *why, const struct err *e)
{
    fprintf(stderr, "fuzz_log: %s: %s\n", why, e ? e->text : "");
    abort();
}

static int64_t now_ms(void)
{
    return 1000000;
}

static struct jobs *make_jobs(void)
{
    struct jobs *j;
    struct err e;
    if (jobs_create(&j, &(struct jobs_options){.now = now_ms, .max_nodes = 64}, &e) < 0)
        die("no jobs", &e);
    return j;
}

static void frame_records(const uint8_t *p, size_t n, struct buf *out)
{
    uint32_t number = 0;
    if (persist_frame_header(out) < 0)
        die("no memory", NULL);
    for (size_t at = 0; at <= n;) {
        const uint8_t *end = at < n ? memchr(p + at, 1, n - at) : NULL;
        size_t len = end ? (size_t)(end - (p + at)) : n - at;
        if (persist_frame(out, ++number, p + at, len) < 0)
            die("no memory", NULL);
        at += len + 1;
    }
}

/* What a job was loaded as must be written, loaded and written again in the same words. */
static void check_again(struct job *job, const struct buf *first)
{
    struct buf file = {0}, second = {0};
    struct jobs *j = make_jobs();
    struct job *copy = NULL;
    struct err e = {0};
    (void)job;
    if (persist_frame_header(&file) < 0 || persist_frame(&file, 1, first->data, first->len) < 0)
        die("no memory", NULL);
    if (jobs_load_text_(j, file.data, file.len, &copy, &e) < 0 || !copy)
        die("what was written does not load", &e);
    if (job_whole_text_(copy, &second) < 0)
        die("no memory", NULL);
    if (first->len != second.len || memcmp(first->data, second.data, first->len) != 0)
        die("it is written otherwise the second time", NULL);
    buf_free(&file);
    buf_free(&second);
    jobs_destroy(j);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct buf file = {0}, text = {0};
    struct jobs *j;
    struct job *job = NULL;
    struct err e = {0};
    if (n == 0)
        return 0;
    if (data[0] & 1 ? buf_add(&file, data + 1, n - 1) < 0 : (frame_records(data + 1, n - 1, &file), 0))
        die("no memory", NULL);
    j = make_jobs();
    int rc = jobs_load_text_(j, file.data ? file.data : "", file.len, &job, &e);
    if (rc < 0 && !e.text[0])
        die("refused without a sentence", NULL);
    if (rc == 0 && job) {
        if (rdzv_check(job->machine, &e) < 0)
            die("a rule of the machine is broken", &e);
        if (job_whole_text_(job, &text) < 0)
            die("no memory", NULL);
        check_again(job, &text);
    }
    buf_free(&file);
    buf_free(&text);
    jobs_destroy(j);
    return 0;
}

#ifndef FUZZ_WITH_LIBFUZZER
#define INPUT_MAX 8192

static uint64_t state;

static uint64_t draw(uint64_t below)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state % below;
}

struct input {
    uint8_t p[INPUT_MAX];
    size_t n;
};

static void mutate(struct input *in)
{
    static const char *const words[] = {"@job ",  "@news ", "@restart ", "node id=", "machine ", "gone id=", "seq=",
                                        "round=", "kind=",  "silent=1",  "joined=",  "member=1", "\n",       "\1"};
    for (uint64_t times = draw(4) + 1; times > 0; times--) {
        size_t at = in->n ? draw(in->n) : 0;
        const char *word = words[draw(sizeof words / sizeof *words)];
        size_t len = strlen(word);
        switch (draw(4)) {
        case 0:
            if (in->n)
                in->p[at] ^= (uint8_t)(1u << draw(8));
            break;
        case 1:
            if (in->n)
                memmove(in->p + at, in->p + at + 1, --in->n - at);
            break;
        case 2:
            if (in->n)
                in->p[at] = (uint8_t)('0' + draw(10));
            break;
        default:
            if (in->n + len < INPUT_MAX) {
                memmove(in->p + at + len, in->p + at, in->n - at);
                memcpy(in->p + at, word, len);
                in->n += len;
            }
        }
    }
}

static size_t read_corpus(const char *path, struct input **ret)
{
    static char line[2 * INPUT_MAX + 2];
    struct input *v = NULL;
    size_t n = 0;
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f)) {
        unsigned byte;
        v = realloc(v, (n + 1) * sizeof *v);
        if (!v)
            die("no memory", NULL);
        v[n].n = 0;
        for (const char *p = line; sscanf(p, "%2x", &byte) == 1; p += 2)
            v[n].p[v[n].n++] = (uint8_t)byte;
        n++;
    }
    if (f)
        fclose(f);
    *ret = v;
    return n;
}

int main(void)
{
    const char *runs_text = getenv("FUZZ_RUNS"), *seed = getenv("FUZZ_SEED"), *path = getenv("FUZZ_CORPUS");
    unsigned long runs = runs_text ? strtoul(runs_text, NULL, 10) : 20000;
    struct input *corpus;
    size_t n = read_corpus(path ? path : "", &corpus);
    state = seed ? strtoull(seed, NULL, 10) | 1 : 1;
    log_init(LOG_ERROR, "");
    printf("1..1\n");
    for (size_t i = 0; i < n; i++)
        LLVMFuzzerTestOneInput(corpus[i].p, corpus[i].n);
    for (unsigned long i = 0; n && i < runs; i++) {
        struct input in = corpus[draw(n)];
        mutate(&in);
        LLVMFuzzerTestOneInput(in.p, in.n);
    }
    free(corpus);
    printf("%s 1 - %lu logs of %zu seeds are loaded or refused\n", n ? "ok" : "not ok", runs, n);
    return n == 0;
}
#endif
