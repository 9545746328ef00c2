/* Hostile pickles: whatever the bytes are, pickle_read() ends, and what it returns lies within what it says. */
#include <assert.h>
#include <stdint.h>
#include <string.h>

#include "common/base/err.h"
#include "tests/fuzz/driver.h"
#include "worker/weights/pickle_read.h"

#define INPUT_BYTES 4096

static uint64_t whole; /* how many were read */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct pickle p = {0};
    struct err e = {0};
    int rc = pickle_read(&p, data, n, NULL, &e);
    if (rc < 0) {
        assert(e.text[0]);
        return 0;
    }
    assert(p.n > 0);
    whole++;
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
static void change_once(struct fuzz_input *in)
{
    static const uint8_t opcodes[] = "\x80\x95.(0N\x88\x89JKM\x8aGX\x8c]})ldt\x85\x86\x87"
                                     "aesuqr\x94hjc\x93QRb";
    const size_t at = in->n ? fuzz_draw(in->n) : 0;
    const uint8_t byte = fuzz_draw(2) ? opcodes[fuzz_draw(sizeof opcodes - 1)] : (uint8_t)fuzz_draw(256);
    const uint64_t what = fuzz_draw(3);
    if (what == 0 && in->n)
        in->bytes[at] = byte;
    else if (what == 1)
        fuzz_insert(in, at, &byte, 1, INPUT_BYTES);
    else if (in->n > 1)
        fuzz_remove(in, at);
}

static void change(struct fuzz_input *in)
{
    assert(whole > 0); /* the corpus has been run: else it is no good */
    for (uint64_t k = 1 + fuzz_draw(6); k > 0; k--)
        change_once(in);
}

int main(void)
{
    return fuzz_main(&(struct fuzz_plan){.runs = 50000, .change = change, .kept = "leave the reader whole"});
}
#endif
