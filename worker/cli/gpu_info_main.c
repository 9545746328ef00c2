/* `trainer gpu-info`: prints the GPUs that are here, and what trainer can use of them. */
#include "worker/cli/cli.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include <cjson/cJSON.h>

#include "common/args/args.h"
#include "common/base/err.h"
#include "common/base/log.h"
#include "common/job/exitcode.h"
#include "worker/config/exit_code.h"
#include "worker/device/device.h"
#include "worker/device/module/module.h"

struct gpu_info_config {
    bool json;
};

static const struct arg_spec specs[] = {
    {.name = "json",
     .type = ARG_FLAG,
     .at = offsetof(struct gpu_info_config, json),
     .help = "one JSON object, with each GPU's properties in the form that plans without a GPU are made from"},
    ARG_END,
};

static const struct arg_program program = {
    .name = "trainer gpu-info",
    .usage = "[--json]",
    .summary =
        "List the GPUs that this process may use (CUDA_VISIBLE_DEVICES counts) and the versions of CUDA, cuDNN and "
        "driver. Where there is none, say why and end with code 69.",
    .specs = specs,
    .operands = ARG_NO_OPERANDS,
};

/* name, memory and versions, as trainer's log has them */
static int describe(int index, char *out, size_t cap, struct err *e)
{
    struct device *d;
    TRY(device_open(&d, "cuda", &(struct device_options){.threads = 1, .index = index}, e));
    d->ops->describe(d, out, cap);
    d->ops->close(d);
    return 0;
}

static int add_gpu(const struct cuda_module *m, int index, cJSON *gpus, struct err *e)
{
    char text[256], *properties;
    TRY(describe(index, text, sizeof text, e));
    TRY(m->properties(index, &properties, e));
    cJSON *gpu = cJSON_CreateObject(), *read = cJSON_Parse(properties);
    free(properties);
    if (!read) {
        cJSON_Delete(gpu);
        return err_set(e, -EIO, "the properties of GPU %d are no JSON", index);
    }
    cJSON_AddNumberToObject(gpu, "index", index);
    cJSON_AddStringToObject(gpu, "description", text);
    cJSON_AddItemToObject(gpu, "properties", read);
    cJSON_AddItemToArray(gpus, gpu);
    return 0;
}

static int print_json(const struct cuda_module *m, int count, struct err *e)
{
    cJSON *all = cJSON_CreateObject();
    int rc = 0;
    cJSON_AddStringToObject(all, "version", m->version);
    cJSON_AddBoolToObject(all, "nccl", m->nccl != NULL);
    cJSON *gpus = cJSON_AddArrayToObject(all, "gpus");
    for (int i = 0; i < count && rc == 0; i++)
        rc = add_gpu(m, i, gpus, e);
    char *text = rc == 0 ? cJSON_Print(all) : NULL;
    if (text)
        puts(text);
    free(text);
    cJSON_Delete(all);
    return rc;
}

static int print_text(int count, struct err *e)
{
    char text[256];
    for (int i = 0; i < count; i++) {
        TRY(describe(i, text, sizeof text, e));
        printf("GPU %d: %s\n", i, text);
    }
    return 0;
}

int gpu_info_main(int argc, char **argv)
{
    struct gpu_info_config c = {0};
    struct arg_result r;
    struct err e;
    log_init(LOG_WARN, "");
    int rc = args_parse(&program, argc, argv, &c, &r, &e);
    if (rc == 0 && args_answer(&program, "trainer " CRUN_VERSION, &c, &r, stdout))
        return EXIT_OK;
    if (rc == 0) {
        const struct cuda_module *m = cuda_module(&e);
        const int count = m ? m->count(&e) : 0;
        rc = count == 0 ? -ENODEV : c.json ? print_json(m, count, &e) : print_text(count, &e);
    }
    if (rc < 0) {
        fprintf(stderr, "trainer gpu-info: %s\n", e.text);
        return exit_code_of(rc);
    }
    return EXIT_OK;
}
