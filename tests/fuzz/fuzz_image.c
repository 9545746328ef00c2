/* Hostile pictures: whatever the bytes are, image_decode() ends, and takes no more memory than the bytes that are there
 * can fill. The corpus: pictures, and some whose headers and chunks claim gigabytes. */
#include <assert.h>
#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <zlib.h>

#include "common/base/err.h"
#include "tests/fuzz/driver.h"
#include "worker/data/image/image.h"

static uint64_t whole; /* how many were read */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct image im = {0};
    struct err e = {0};
    const int rc = image_decode(data, n, 3, &im, &e);
    assert(rc == 0 || (rc == ERR_DATA && e.text[0] && !im.px));
    if (rc == 0) {
        volatile uint8_t last = im.px[(size_t)im.w * (size_t)im.h * 3 - 1];
        (void)last;
        whole++;
    }
    image_free(&im);
    return 0;
}

#ifndef FUZZ_WITH_LIBFUZZER
static uint32_t get(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

/* Else nothing beyond a changed chunk's sum would be reached. */
static void mend_png(struct fuzz_input *in)
{
    for (size_t at = 8; at + 12 <= in->n;) {
        const uint32_t n = get(in->bytes + at);
        if (n > in->n - at - 12)
            return;
        const uint32_t sum = (uint32_t)crc32(0, in->bytes + at + 4, n + 4);
        for (int i = 0; i < 4; i++)
            in->bytes[at + 8 + n + (size_t)i] = (uint8_t)(sum >> (24 - 8 * i));
        at += 12 + n;
    }
}

static void change(struct fuzz_input *in)
{
    static const uint8_t edges[] = {0, 1, 0x7f, 0x80, 0xff};
    assert(whole > 0); /* the corpus has been run: else it is no good */
    for (uint64_t k = 1 + fuzz_draw(4); k > 0 && in->n; k--) {
        const size_t at = fuzz_draw(fuzz_draw(2) && in->n > 64 ? 64 : in->n);
        const uint64_t what = fuzz_draw(8);
        if (what == 0)
            fuzz_remove(in, at);
        else
            in->bytes[at] = what < 4 ? edges[fuzz_draw(sizeof edges)] : (uint8_t)fuzz_draw(256);
    }
    if (in->n > 8 && in->bytes[1] == 'P' && fuzz_draw(8))
        mend_png(in);
}

int main(void)
{
    return fuzz_main(&(struct fuzz_plan){.runs = 20000, .change = change, .kept = "leave the decoders whole"});
}
#endif
