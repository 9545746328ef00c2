/* batches FOLDER SIZE BATCH GROUP STEPS DIR: the batches that trainer makes of a folder of pictures with
 * torchvision-v2's augmentation (seed 0, one rank), for a comparison with another framework. GROUP as in --mix-group.
 * Writes DIR/images (STEPS, BATCH, SIZE, SIZE, 3) u8, augmented, but neither erased nor mixed, and DIR/log, whose
 * lines are those of trainer's --debug-batch-sha: how rows are erased and mixed, and a hash of all that. */
#include <stdio.h>
#include <stdlib.h>

#include "common/base/err.h"
#include "worker/data/loader/loader.h"
#include "worker/data/sets/dataset.h"

static struct loader_options options(int size, int batch, int group, const char *log)
{
    struct loader_options o = {.sampler = {.world = 1, .batch = (size_t)batch, .shuffle = true, .repetitions = 4},
                               .input = {.size = size,
                                         .channels = 3,
                                         .training = true,
                                         .augment = {0.08, 1, 3.0 / 4, 4.0 / 3, 0.5},
                                         .policy = {.kind = POLICY_TRIVIAL, .ops = 1, .bilinear = true},
                                         .erase = 0.1},
                               .mix = {.mixup = 0.2, .cutmix = 1, .group = (size_t)group},
                               .threads = 1,
                               .strict = true,
                               .batch_log = log};
    o.sampler.mix_group = o.mix.group;
    return o;
}

static int dump(struct loader *l, int size, int steps, FILE *f, struct err *e)
{
    TRY(loader_seek(l, 0, 0, 1 << 20, e));
    for (int i = 0; i < steps; i++) {
        struct loader_batch b;
        TRY(loader_next(l, &b, e));
        const size_t n = b.count * (size_t)size * (size_t)size * 3;
        if (fwrite(b.b.rows, 1, n, f) != n)
            return err_set(e, ERR_OUTPUT, "images: not written");
        loader_done(l, &b);
    }
    return 0;
}

int main(int argc, char **argv)
{
    struct dataset *d = NULL;
    struct loader *l = NULL;
    struct err e = {0};
    char log[4096], images[4096];
    if (argc != 7)
        return 2;
    snprintf(log, sizeof log, "%s/log", argv[6]);
    snprintf(images, sizeof images, "%s/images", argv[6]);
    const struct loader_options o = options(atoi(argv[2]), atoi(argv[3]), atoi(argv[4]), log);
    FILE *f = fopen(images, "wb");
    int rc = f ? dataset_open_folder(&d, argv[1], NULL, 0, &e) : err_set(&e, ERR_OUTPUT, "%s: not written", images);
    if (rc == 0)
        rc = loader_create(&l, d, &o, &e);
    if (rc == 0)
        rc = dump(l, o.input.size, atoi(argv[5]), f, &e);
    if (rc < 0)
        fprintf(stderr, "%s\n", e.text);
    loader_destroy(l);
    dataset_close(d);
    return (f && fclose(f) != 0) || rc < 0 ? 1 : 0;
}
