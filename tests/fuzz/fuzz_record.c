/* Hostile records of data bases: whatever the bytes are, record_read() ends, and gives no more than they hold. */
#include <assert.h>
#include <stdint.h>

#include "common/base/buf.h"
#include "common/base/err.h"
#include "tests/fuzz/driver.h"
#include "worker/data/db/record.h"

enum { HEAD = 64 }; /* of the PPM that pixels become */

static uint64_t whole; /* how many were read */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct buf picture = {0};
    struct err e = {0};
    int label;
    const int rc = record_read(data, n, &picture, &label, &e);
    assert(rc == 0 || (rc == ERR_DATA && e.text[0]));
    assert(picture.len <= n + HEAD);
    whole += rc == 0;
    buf_free(&picture);
    return 0;
}

#ifndef FUZZ_WITH_LIBFUZZER
static void change(struct fuzz_input *in)
{
    assert(whole > 0); /* the corpus has been run: else it is no good */
    for (uint64_t k = 1 + fuzz_draw(4); k > 0 && in->n; k--) {
        const size_t at = fuzz_draw(in->n < 40 ? in->n : 40);
        const uint8_t byte = (uint8_t)fuzz_draw(256);
        if (fuzz_draw(2))
            in->bytes[at] = byte;
        else if (fuzz_draw(2))
            fuzz_insert(in, at, &byte, 1, FUZZ_INPUT_MAX);
        else
            fuzz_remove(in, at);
    }
}

int main(void)
{
    return fuzz_main(&(struct fuzz_plan){.runs = 50000, .change = change, .kept = "leave the reader whole"});
}
#endif
