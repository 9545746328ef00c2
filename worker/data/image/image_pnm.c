/* PGM (P5) and PPM (P6) of 8 bits: the simplest picture file there is, and how raw pixels of records reach
 * image_decode(). */
#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "common/base/err.h"
#include "worker/data/image/image_impl.h"

struct cursor {
    const uint8_t *p, *end;
};

static bool is_blank(uint8_t c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* The next number of the header; blanks and comments before it are passed over. */
static bool read_number(struct cursor *c, uint64_t *ret)
{
    while (c->p < c->end && (is_blank(*c->p) || *c->p == '#'))
        if (*c->p++ == '#')
            while (c->p < c->end && c->p[-1] != '\n')
                c->p++;
    if (c->p == c->end || *c->p < '0' || *c->p > '9')
        return false;
    for (*ret = 0; c->p < c->end && *c->p >= '0' && *c->p <= '9'; c->p++)
        if ((*ret = *ret * 10 + (*c->p - '0')) > UINT32_MAX)
            return false;
    return true;
}

int image_decode_pnm(const void *data, size_t n, int channels, struct image *ret, struct err *e)
{
    const uint8_t *head = data;
    struct cursor c = {.p = head + 2, .end = head + n};
    const int own = head[1] == '6' ? 3 : 1;
    uint64_t w, h, most;
    if (!read_number(&c, &w) || !read_number(&c, &h) || !read_number(&c, &most) || c.p == c.end || !is_blank(*c.p++))
        return err_set(e, ERR_DATA, "a damaged P%c header", head[1]);
    if (most != 255)
        return err_set(e, ERR_DATA, "a P%c image of %ju levels (expected 255)", head[1], (uintmax_t)most);
    struct image im;
    TRY(image_check_size(w, h, e));
    const size_t pixels = (size_t)w * (size_t)h;
    if ((size_t)(c.end - c.p) < pixels * (size_t)own)
        return err_set(e, ERR_DATA, "a P%c image cut short: %zu of %zu bytes", head[1], (size_t)(c.end - c.p),
                       pixels * (size_t)own);
    TRY(image_alloc(&im, w, h, channels, e));
    if (own == channels)
        memcpy(im.px, c.p, pixels * (size_t)own);
    else if (channels == 1)
        image_luma(c.p, im.px, pixels);
    else
        for (size_t i = 0; i < pixels; i++)
            memset(im.px + 3 * i, c.p[i], 3);
    *ret = im;
    return 0;
}
