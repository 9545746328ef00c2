/* Pixels as the trainer prepares them, for other programs to compare with: dump_input FILE KIND SIZE TRAINING ID HOW
 * KIND as in --input; TRAINING 0 or 1; HOW as in --interpolation. Prints "w h: x y w h flip" of the torch crop (seed 0,
 * pass 0) and then (SIZE, SIZE, 3) bytes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/base/err.h"
#include "worker/data/image/rng.h"
#include "worker/data/loader/input.h"

static const char *const kinds[] = {INPUTS(CHOICE_NAME) NULL}, *const ways[] = {INTERPOLATIONS(CHOICE_NAME) NULL};

static int index_of(const char *name, const char *const *names)
{
    for (int i = 0; names[i]; i++)
        if (strcmp(name, names[i]) == 0)
            return i;
    return -1;
}

int main(int argc, char **argv)
{
    struct buf file = {0};
    struct image im;
    struct err e = {0};
    int c;
    if (argc != 7 || index_of(argv[2], kinds) < 0 || index_of(argv[6], ways) < 0)
        return 2;
    FILE *f = fopen(argv[1], "rb");
    while (f && (c = getc(f)) != EOF)
        buf_add(&file, &(char){(char)c}, 1);
    struct input_options o = {.kind = (enum input_kind)index_of(argv[2], kinds),
                              .size = atoi(argv[3]),
                              .channels = 3,
                              .interpolation = (enum interpolation)index_of(argv[6], ways),
                              .training = atoi(argv[4]) == 1,
                              .augment = {0.08, 1, 3.0 / 4, 4.0 / 3, 0.5}};
    const uint64_t id = strtoull(argv[5], NULL, 10);
    const size_t n = (size_t)o.size * (size_t)o.size * 3;
    uint8_t *px = malloc(n);
    struct input_scratch *scratch = input_scratch_create();
    if (input_check(&o, &e) < 0 || image_decode(file.data, file.len, 3, &im, &e) < 0 ||
        input_load(&o, scratch, file.data, file.len, (struct showing){0, (uint32_t)id, 0}, px, &e) < 0) {
        fprintf(stderr, "%s\n", e.text);
        return 1;
    }
    struct rng numbers = rng_stream(0, RNG_AUGMENT, 0, id);
    const struct crop at = augment_crop(&o.augment, &numbers, im.w, im.h);
    printf("%d %d: %d %d %d %d %d\n", im.w, im.h, at.x, at.y, at.w, at.h, at.flip);
    return fwrite(px, 1, n, stdout) == n ? 0 : 1;
}
