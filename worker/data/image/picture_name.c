/* Tells by its name whether a file is a picture that can be read, and counts those that are not. */
#include "worker/data/image/picture_name.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#ifdef HAVE_PNG
#define PNG(X) X(".png")
#define NO_PNG(X)
#else
#define PNG(X)
#define NO_PNG(X) X(".png")
#endif
#ifdef HAVE_WEBP
#define WEBP(X) X(".webp")
#define NO_WEBP(X)
#else
#define WEBP(X)
#define NO_WEBP(X) X(".webp")
#endif
#define READABLE(X)                                                                                                    \
    X(".jpg")                                                                                                          \
    X(".jpeg")                                                                                                         \
    PNG(X)                                                                                                             \
    WEBP(X)                                                                                                            \
    X(".ppm")                                                                                                          \
    X(".pgm")
#define OTHERS(X)                                                                                                      \
    NO_WEBP(X)                                                                                                         \
    X(".bmp")                                                                                                          \
    X(".gif")                                                                                                          \
    X(".tif")                                                                                                          \
    X(".tiff")                                                                                                         \
    X(".avif")                                                                                                         \
    X(".heic")                                                                                                         \
    X(".heif")                                                                                                         \
    X(".jfif")                                                                                                         \
    X(".jp2")                                                                                                          \
    X(".jxl")                                                                                                          \
    X(".pbm")                                                                                                          \
    NO_PNG(X)

#define X(suffix) suffix,
static const char *const readable[] = {READABLE(X)}, *const others[] = {OTHERS(X)};
#undef X
enum { N_READABLE = sizeof readable / sizeof *readable, N_OTHERS = sizeof others / sizeof *others };
static_assert(N_OTHERS <= PICTURE_FORMATS_MAX, "struct pictures_left_out");

static int find(const char *name, const char *const *suffixes, int n)
{
    const char *dot = strrchr(name, '.');
    for (int i = 0; dot && i < n; i++)
        if (strcasecmp(dot, suffixes[i]) == 0)
            return i;
    return -1;
}

bool picture_hidden(const char *name)
{
    return name[0] == '.';
}

bool picture_readable(const char *name)
{
    return find(name, readable, N_READABLE) >= 0;
}

const char *picture_suffixes(void)
{
#define X(suffix) ", " suffix
    return READABLE(X) + 2;
#undef X
}

void pictures_left_out_count(struct pictures_left_out *l, const char *name)
{
    const int i = find(name, others, N_OTHERS);
    if (i < 0)
        return;
    l->n[i]++;
    l->all++;
}

const char *pictures_left_out_text(const struct pictures_left_out *l, char out[PICTURES_LEFT_OUT_TEXT])
{
    int at = snprintf(out, PICTURES_LEFT_OUT_TEXT, "%zu picture%s left out:", l->all,
                      l->all == 1 ? " of another format is" : "s of other formats are");
    const char *comma = "";
    for (int i = 0; i < N_OTHERS && at < PICTURES_LEFT_OUT_TEXT; i++) {
        if (l->n[i] == 0)
            continue;
        at += snprintf(out + at, PICTURES_LEFT_OUT_TEXT - (size_t)at, "%s %zu %s", comma, l->n[i], others[i]);
        comma = ",";
    }
    if (at < PICTURES_LEFT_OUT_TEXT)
        snprintf(out + at, PICTURES_LEFT_OUT_TEXT - (size_t)at, "; readable are %s", picture_suffixes());
    return out;
}
