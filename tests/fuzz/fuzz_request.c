/* The request parser against hostile bytes: whatever comes, it neither crashes nor takes more memory than was received,
 * and what it says does not depend on how the bytes were cut. */
#include "common/base/buf.h"
#include "common/base/err.h"
#include "rendezvousd/resp/request.h"
#include "tests/fuzz/driver.h"
#include <string.h>

static const struct request_limits limits = {.max_bytes = 2048, .max_args = 32};

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
            fuzz_die("a piece within the limits was not taken");
        at += len;
        while ((rc = request_next(&p, &rq, &e)) == 1) {
            if (rq.argc < 1 || rq.argc > limits.max_args)
                fuzz_die("a request has an impossible number of arguments");
            for (size_t k = 0; k < rq.argc; k++) {
                buf_printf(out, "%zu:", rq.argv[k].n);
                buf_add(out, rq.argv[k].p, rq.argv[k].n);
            }
            buf_addstr(out, ";");
        }
        if (request_memory(&p) > 4 * n + 64 * (sizeof(struct request_arg) + sizeof(size_t)) + 128)
            fuzz_die("memory grew beyond what was received");
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
        fuzz_die("the requests depend on how the bytes were cut");
    buf_free(&whole);
    buf_free(&cut);
    return 0;
}

#ifndef FUZZ_WITH_LIBFUZZER
enum { INPUT_BYTES = 512 };

static void change_once(struct fuzz_input *in)
{
    static const char alphabet[] = "*$\r\n0123456789-'\"\\x aPI";
    const size_t at = in->n ? fuzz_draw(in->n) : 0;
    const struct fuzz_input *more;
    switch (fuzz_draw(4)) {
    case 0:
        if (in->n)
            in->bytes[at] = (uint8_t)(fuzz_draw(2) ? alphabet[fuzz_draw(sizeof alphabet - 1)] : (char)fuzz_draw(256));
        break;
    case 1:
        fuzz_insert(in, at, &alphabet[fuzz_draw(sizeof alphabet - 1)], 1, INPUT_BYTES);
        break;
    case 2:
        if (in->n > 1)
            fuzz_remove(in, at);
        break;
    default:
        more = fuzz_kept();
        fuzz_insert(in, in->n, more->bytes, more->n, INPUT_BYTES);
    }
}

static void change(struct fuzz_input *in)
{
    for (uint64_t k = fuzz_draw(6); k > 0; k--)
        change_once(in);
}

int main(void)
{
    return fuzz_main(&(struct fuzz_plan){.runs = 100000, .change = change, .kept = "leave the parser whole"});
}
#endif
