/* How many nodes and workers. */
#include <stdio.h>
#include <string.h>

#include "common/err.h"
#include "common/rdzv.h"
#include "launcher/config.h"
#include "launcher/cores.h"
#include "launcher/gpus.h"

int config_parse_nnodes(const char *text, void *field, struct err *e)
{
    struct config_nodes *n = field;
    char min[16];
    const char *colon = strchr(text, ':');
    int64_t lo, hi;
    struct err why;
    snprintf(min, sizeof min, "%.*s", colon ? (int)(colon - text) : 15, text);
    if (parse_i64(min, "", 1, RDZV_NODES_MAX, &lo, &why) < 0 ||
        parse_i64(colon ? colon + 1 : min, "", 1, RDZV_NODES_MAX, &hi, &why) < 0 || lo > hi)
        return err_set(e, ERR_USAGE, "expected N or MIN:MAX with 1 <= MIN <= MAX <= %d", RDZV_NODES_MAX);
    *n = (struct config_nodes){(int)lo, (int)hi};
    return 0;
}

int config_parse_nproc(const char *text, void *field, struct err *e)
{
    int64_t *n = field;
    struct gpu gpus[GPUS_MAX];
    const bool automatic = strcmp(text, "auto") == 0, gpu = strcmp(text, "gpu") == 0;
    if (automatic || gpu) {
        *n = gpus_usable(gpus);
        if (*n > 0)
            return 0;
        if (gpu)
            return err_set(e, ERR_USAGE,
                           "no GPU is usable here (CUDA_VISIBLE_DEVICES counts): expected a number, cpu or auto");
    }
    if (automatic || strcmp(text, "cpu") == 0) {
        *n = cores_usable();
        return 0;
    }
    struct err why;
    if (parse_i64(text, "workers", 1, RDZV_SLOTS_MAX, n, &why) < 0)
        return err_set(e, ERR_USAGE, "expected a number from 1 to %d, auto, cpu or gpu", RDZV_SLOTS_MAX);
    return 0;
}
