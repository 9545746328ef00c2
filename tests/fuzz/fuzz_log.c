/* The decision log of a state directory against hostile bytes: a file is loaded or refused with a sentence; what was
 * loaded keeps every rule of the machine, and what is written of it loads again as the same.
 *
 * The first byte says how: odd, the rest is a file; even, the rest is the text of records (cut at each byte 1), framed
 * here, so that the fuzzer need not find checksums. */
#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/base/log.h"
#include "common/rdzv/leader/leader.h"
#include "common/rdzv/wire/rdzv_frame.h"
#include "rendezvousd/state/state_log.h"
#include "tests/fuzz/driver.h"
#include <stdio.h>
#include <string.h>

static void die(const char *why, const struct err *e)
{
    char text[700];
    snprintf(text, sizeof text, "%s: %s", why, e ? e->text : "");
    fuzz_die(text);
}

#define NOW_MS 1000000

static void frame_records(const uint8_t *p, size_t n, struct buf *out)
{
    uint32_t number = 0;
    if (state_log_header(out) < 0)
        die("no memory", NULL);
    for (size_t at = 0; at <= n;) {
        const uint8_t *end = at < n ? memchr(p + at, 1, n - at) : NULL;
        size_t len = end ? (size_t)(end - (p + at)) : n - at;
        if (rdzv_frame_put(out, ++number, p + at, len) < 0)
            die("no memory", NULL);
        at += len + 1;
    }
}

/* *ret: a leader without a machine, if there is no job in it, or it is refused. */
static int load(const struct buf *file, struct leader **ret, struct err *e)
{
    struct buf text = {0};
    size_t good;
    if (leader_create(ret, &(struct leader_options){.run = ""}, e) < 0)
        die("no leader", e);
    int rc = state_log_parse(file->data ? file->data : "", file->len, &text, &good, e);
    if (rc == 0)
        rc = leader_replay(*ret, text.data ? text.data : "", text.len, NOW_MS, e);
    if (rc == 0)
        rc = leader_restore(*ret, NOW_MS, 0, e);
    buf_free(&text);
    return rc;
}

/* What a job was loaded as must be written, loaded and written again in the same words. */
static void check_again(const struct buf *first)
{
    struct buf file = {0}, second = {0};
    struct leader *copy;
    struct err e = {0};
    if (state_log_header(&file) < 0 || rdzv_frame_put(&file, 1, first->data, first->len) < 0)
        die("no memory", NULL);
    if (load(&file, &copy, &e) < 0 || !leader_machine(copy))
        die("what was written does not load", &e);
    if (leader_text(copy, NOW_MS, &second, NULL) < 0)
        die("no memory", NULL);
    if (first->len != second.len || memcmp(first->data, second.data, first->len) != 0)
        die("it is written otherwise the second time", NULL);
    buf_free(&file);
    buf_free(&second);
    leader_destroy(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct buf file = {0}, text = {0};
    struct leader *l;
    struct err e = {0};
    if (n == 0)
        return 0;
    if (data[0] & 1 ? buf_add(&file, data + 1, n - 1) < 0 : (frame_records(data + 1, n - 1, &file), 0))
        die("no memory", NULL);
    int rc = load(&file, &l, &e);
    if (rc < 0 && !e.text[0])
        die("refused without a sentence", NULL);
    if (rc == 0 && leader_machine(l)) {
        if (rdzv_check(leader_machine(l), &e) < 0)
            die("a rule of the machine is broken", &e);
        if (leader_text(l, NOW_MS, &text, NULL) < 0)
            die("no memory", NULL);
        check_again(&text);
    }
    buf_free(&file);
    buf_free(&text);
    leader_destroy(l);
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
