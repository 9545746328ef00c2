/* The decision log of rendezvousd against hostile bytes: a file is loaded or refused with a sentence; what was loaded
 * keeps every rule of the machine, and what is written of it loads again as the same.
 *
 * The first byte says how: odd, the rest is a file; even, the rest is the text of records (cut at each byte 1), framed
 * here, so that the fuzzer need not find checksums. */
#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/base/log.h"
#include "rendezvousd/jobs/jobs_impl.h"
#include "rendezvousd/jobs/persist.h"
#include "tests/fuzz/driver.h"
#include <stdio.h>
#include <string.h>

static void die(const char *why, const struct err *e)
{
    char text[700];
    snprintf(text, sizeof text, "%s: %s", why, e ? e->text : "");
    fuzz_die(text);
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
    if (leader_text(copy->leader, now_ms(), &second, NULL) < 0)
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
        if (rdzv_check(leader_machine(job->leader), &e) < 0)
            die("a rule of the machine is broken", &e);
        if (leader_text(job->leader, now_ms(), &text, NULL) < 0)
            die("no memory", NULL);
        check_again(job, &text);
    }
    buf_free(&file);
    buf_free(&text);
    jobs_destroy(j);
    return 0;
}

#ifndef FUZZ_WITH_LIBFUZZER
static void change_once(struct fuzz_input *in)
{
    static const char *const words[] = {"@job ",    "@news ",   "@restart ", "@answer ", "@elder ", "node id=",
                                        "machine ", "gone id=", "seq=",      "round=",   "kind=",   "silent=1",
                                        "joined=",  "member=1", "\n",        "\1"};
    const size_t at = in->n ? fuzz_draw(in->n) : 0;
    const char *word = words[fuzz_draw(sizeof words / sizeof *words)];
    switch (fuzz_draw(4)) {
    case 0:
        if (in->n)
            in->bytes[at] ^= (uint8_t)(1u << fuzz_draw(8));
        break;
    case 1:
        fuzz_remove(in, at);
        break;
    case 2:
        if (in->n)
            in->bytes[at] = (uint8_t)('0' + fuzz_draw(10));
        break;
    default:
        fuzz_insert(in, at, word, strlen(word), FUZZ_INPUT_MAX);
    }
}

static void change(struct fuzz_input *in)
{
    for (uint64_t k = fuzz_draw(4) + 1; k > 0; k--)
        change_once(in);
}

int main(void)
{
    log_init(LOG_ERROR, "");
    return fuzz_main(&(struct fuzz_plan){.runs = 20000, .change = change, .kept = "are loaded or refused"});
}
#endif
