/* save_and_load FOLDER STEP: saves a checkpoint and loads it again, and says "saved" and "loaded" as each is done; then
 * "left N", the bytes of memory that the two still hold. save_and_load FOLDER: loads the newest, says "newest STEP".
 * tests/e2e/trainer/test_nth_call_checkpoint.py lets its calls fail. What it needs itself is not from the heap. */
#include <errno.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

#include "common/base/err.h"
#include "worker/ckpt/ckpt.h"

#define ELEMENTS 3000

static float values[ELEMENTS], loaded[ELEMENTS];
static char out[BUFSIZ];

static struct ckpt_tensor tensor(const char *name, int64_t step)
{
    struct ckpt_tensor t = {.dtype = DT_F32, .ndim = 1, .shape = {ELEMENTS}, .data = values};
    strcpy(t.name, name);
    for (int i = 0; i < ELEMENTS; i++)
        values[i] = (float)step + (float)i / 1024;
    return t;
}

static int load(const char *folder, int64_t step, struct err *e)
{
    const struct ckpt_tensor want[] = {tensor("conv1.weight", step), tensor("momentum.conv1.weight", step)};
    struct ckpt *c;
    TRY(ckpt_open(&c, folder, step, e));
    int rc = 0;
    for (int i = 0; i < 2 && rc == 0; i++) {
        rc = ckpt_read(c, i == 0 ? "model" : "train", &want[i], loaded, e);
        if (rc == 0 && memcmp(loaded, values, sizeof values) != 0)
            rc = err_set(e, ERR_CORRUPT, "step %lld holds other values than were saved", (long long)step);
    }
    ckpt_close(c);
    return rc;
}

static int save(const char *folder, int64_t step, struct err *e)
{
    const struct ckpt_tensor model = tensor("conv1.weight", step), train = tensor("momentum.conv1.weight", step);
    cJSON *meta = cJSON_CreateObject();
    if (!meta)
        return err_set(e, -ENOMEM, "no memory for a checkpoint's meta");
    const int rc = ckpt_save(folder, step, &model, 1, &train, 1, meta, 0, e);
    cJSON_Delete(meta);
    return rc;
}

static int run(const char *folder, const char *step, struct err *e)
{
    int64_t newest = -1;
    if (step) {
        TRY(save(folder, atoll(step), e));
        printf("saved\n");
        TRY(load(folder, atoll(step), e));
        printf("loaded\n");
        return 0;
    }
    TRY(ckpt_latest(folder, &newest, e));
    TRY(load(folder, newest, e));
    printf("newest %lld\n", (long long)newest);
    return 0;
}

int main(int argc, char **argv)
{
    struct err e = {0};
    setvbuf(stdout, out, _IOFBF, sizeof out);
    const size_t before = mallinfo2().uordblks;
    const int rc = argc < 2 ? -EINVAL : run(argv[1], argv[2], &e);
    if (rc < 0)
        fprintf(stderr, "save_and_load: %s\n", e.text);
    printf("left %zd\n", (ssize_t)(mallinfo2().uordblks - before));
    if (fflush(stdout) == 0)
        return rc < 0;
    perror("save_and_load: the output");
    return 1;
}
