/* Finds the one device of a worker under --virtual-local-rank (virtual_rank.h). */
#include "launcher/base/virtual_rank.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"

#define DEVICE_MAX 100 /* the name of a MIG instance has 40 characters */

/* Item `local_rank` of "0, 2,GPU-1234". */
static int pick(const char *variable, const char *list, int local_rank, char out[DEVICE_MAX + 1], struct err *e)
{
    const char *item = list;
    int n = 0;
    for (; n < local_rank && strchr(item, ','); n++)
        item = strchr(item, ',') + 1;
    item += strspn(item, " ");
    size_t len = strcspn(item, ",");
    while (len && item[len - 1] == ' ')
        len--;
    if (n < local_rank || len == 0 || len > DEVICE_MAX)
        return err_set(e, ERR_USAGE, "--virtual-local-rank: %s is '%.100s', expected a device for local rank %d",
                       variable, list, local_rank);
    snprintf(out, DEVICE_MAX + 1, "%.*s", (int)len, item);
    return 0;
}

int virtual_rank_device(int local_rank, struct virtual_rank *ret, struct err *e)
{
    const char *hip = getenv("HIP_VISIBLE_DEVICES"), *cuda = getenv("CUDA_VISIBLE_DEVICES");
    const bool amd = hip && *hip;
    char device[DEVICE_MAX + 1];
    if (amd || cuda)
        TRY(pick(amd ? "HIP_VISIBLE_DEVICES" : "CUDA_VISIBLE_DEVICES", amd ? hip : cuda, local_rank, device, e));
    else
        snprintf(device, sizeof device, "%d", local_rank);
    *ret = (struct virtual_rank){.hip = ""};
    snprintf(ret->cuda, sizeof ret->cuda, "CUDA_VISIBLE_DEVICES=%s", device);
    if (amd)
        snprintf(ret->hip, sizeof ret->hip, "HIP_VISIBLE_DEVICES=%s", device);
    return 0;
}
