/* Operations on a picture, for other programs to compare with.
 *   dump_ops WIDTH HEIGHT CHANNELS FILE   FILE: raw bytes. A line "NAME VALUE nearest|bilinear|bicubic" of standard
 *                                         input each gives the picture that this operation makes of it, as bytes
 *   dump_ops draw POLICY SIZE N           N lines "NAME VALUE" of what the policy draws, seed 0, samples 0 to N - 1 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "worker/data/augment/policy.h"
#include "worker/data/image/rng.h"

static const char *const names[] = {
#define X(id, word) word,
    PICTURE_OPS(X)
#undef X
};

static int draw(const char *text, int size, int n)
{
    struct policy p;
    struct err e;
    if (policy_parse(text, &p, &e) < 0) {
        fprintf(stderr, "%s\n", e.text);
        return 2;
    }
    for (int i = 0; i < n; i++) {
        struct drawn d[POLICY_DRAWN_MOST];
        struct rng r = rng_stream(0, RNG_POLICY, 0, (uint64_t)i);
        const int k = policy_draw(&p, &(struct jitter){{0}}, size, &r, d);
        for (int j = 0; j < k; j++)
            printf("%s %.17g\n", d[j].cut_out ? "cut-out" : names[d[j].op], d[j].cut_out ? d[j].half : d[j].value);
    }
    return 0;
}

static int op_of(const char *name)
{
    int i = 0;
    while (i < PICTURE_OPS_N && strcmp(names[i], name) != 0)
        i++;
    return i;
}

int main(int argc, char **argv)
{
    char name[32], how[16];
    double value;
    if (argc == 5 && strcmp(argv[1], "draw") == 0)
        return draw(argv[2], atoi(argv[3]), atoi(argv[4]));
    if (argc != 5)
        return 2;
    struct image im = {.w = atoi(argv[1]), .h = atoi(argv[2]), .c = atoi(argv[3])};
    const size_t n = (size_t)im.w * (size_t)im.h * (size_t)im.c;
    uint8_t *source = malloc(n), *spare = malloc(n);
    FILE *f = fopen(argv[4], "rb");
    im.px = malloc(n);
    if (!f || !source || !spare || !im.px || fread(source, 1, n, f) != n)
        return 2;
    while (scanf("%31s %lf %15s", name, &value, how) == 3) {
        const struct picture_how way = {.between = strcmp(how, "bicubic") == 0    ? PICTURE_BICUBIC
                                                   : strcmp(how, "bilinear") == 0 ? PICTURE_BILINEAR
                                                                                  : PICTURE_NEAREST};
        if (op_of(name) == PICTURE_OPS_N)
            return 2;
        memcpy(im.px, source, n);
        picture_op(&im, (enum picture_op)op_of(name), value, &way, spare);
        fwrite(im.px, 1, n, stdout);
    }
    return 0;
}
