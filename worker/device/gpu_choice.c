/* Chooses the GPU of a rank. */
#include "worker/device/gpu_choice.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"

/* The n-th number of a list, the list taken round and round; -1: it is no number. */
static int entry(const char *list, int n)
{
    int count = 1;
    char *end;
    for (const char *p = list; *p; p++)
        count += *p == ',';
    for (n %= count; n > 0; n--)
        list = strchr(list, ',') + 1;
    const long v = strtol(list, &end, 10);
    return end > list && (*end == ',' || *end == '\0') && v >= 0 && v < 65536 ? (int)v : -1;
}

int gpu_choose(const struct gpu_choice *c, int visible, int *ret_index, struct err *e)
{
    if (c->list) {
        const int index = entry(c->list, c->local_rank);
        if (index < 0 || index >= visible)
            return err_set(e, -ENODEV, "--gpus %s: %d GPU%s can be used here, the last is number %d", c->list, visible,
                           visible == 1 ? "" : "s", visible - 1);
        *ret_index = index;
        return 0;
    }
    *ret_index = c->local_rank % visible;
    return 0;
}

static bool is_same(const struct gpu_taken *a, const struct gpu_taken *b)
{
    return a->gpu && b->gpu && strcmp(a->gpu, b->gpu) == 0 && strcmp(a->machine, b->machine) == 0;
}

int gpu_check_taken(const struct gpu_taken *ranks, int world, struct err *e)
{
    for (int b = 1; b < world; b++)
        for (int a = 0; a < b; a++)
            if (is_same(&ranks[a], &ranks[b]))
                return err_set(e, -ENODEV,
                               "ranks %d and %d are on the same GPU (UUID %s): start fewer, or give each its own "
                               "(CUDA_VISIBLE_DEVICES, --gpus), or let them share with --oversubscribe --comm gloo",
                               a, b, ranks[a].gpu);
    return 0;
}
