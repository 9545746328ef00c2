#include "worker/device/gpu_choice.h"

#include <errno.h>
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
    if (c->local_world > visible && !c->oversubscribe)
        return err_set(
            e, -ENODEV,
            "%d ranks on this machine, but %d GPU%s can be used here: start fewer, see CUDA_VISIBLE_DEVICES, or "
            "let them share with --oversubscribe",
            c->local_world, visible, visible == 1 ? "" : "s");
    *ret_index = c->local_rank % visible;
    return 0;
}
