#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/worker/ckpt/state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"

static void define(struct ckpt_tensor *t, const char *name, enum dtype dtype, int ndim, int64_t a, int64_t b,
                   int64_t step)
{
    *t = (struct ckpt_tensor){.dtype = dtype, .ndim = ndim, .shape = {a, b}};
    snprintf(t->name, sizeof t->name, "%s", name);
    size_t n = (size_t)((ndim > 0 ? a : 1) * (ndim > 1 ? b : 1));
    char *data = malloc(n * dtype_size(dtype));
    for (size_t i = 0; i < n; i++) {
        if (dtype == DT_I64)
            ((int64_t *)data)[i] = step * 1000 + (int64_t)i;
        else
            ((float *)data)[i] = (float)step + (float)i / 1024;
    }
    t->data = data;
}

struct state *state_make(int64_t step)
{
    struct state *s = malloc(sizeof *s);
    define(&s->model[0], "conv1.weight", DT_F32, 2, STATE_LARGE / 100, 100, step);
    define(&s->model[1], "bn1.num_batches_tracked", DT_I64, 0, 0, 0, step);
    define(&s->model[2], "fc.weight", DT_F32, 2, 10, 512, step);
    define(&s->model[3], "fc.bias", DT_F32, 1, 10, 0, step);
    define(&s->train[0], "momentum.conv1.weight", DT_F32, 1, STATE_LARGE, 0, step);
    define(&s->train[1], "sampler.position", DT_I64, 1, 3, 0, step);
    return s;
}

void state_free(struct state *s)
{
    for (int i = 0; i < STATE_MODEL; i++)
        free((void *)(uintptr_t)s->model[i].data);
    for (int i = 0; i < STATE_TRAIN; i++)
        free((void *)(uintptr_t)s->train[i].data);
    free(s);
}

int state_save(const char *dir, int64_t step, int keep, struct err *e)
{
    struct state *s = state_make(step);
    cJSON *meta = cJSON_CreateObject();
    cJSON_AddNumberToObject(meta, "half", (double)step / 2);
    int rc = ckpt_save(dir, step, s->model, STATE_MODEL, s->train, STATE_TRAIN, meta, keep, e);
    cJSON_Delete(meta);
    state_free(s);
    return rc;
}

static void check_tensor(struct ckpt *c, int64_t step, const char *file, const struct ckpt_tensor *t)
{
    struct err e = {0};
    int64_t bytes = 0;
    assert_int_equal(ckpt_tensor_bytes(t, &bytes), 0);
    char *room = malloc((size_t)bytes);
    if (ckpt_read(c, file, t, room, &e) < 0)
        fail_msg("%s", e.text);
    if (memcmp(room, t->data, (size_t)bytes) != 0)
        fail_msg("tensor '%s' of step %lld holds other values than were saved", t->name, (long long)step);
    free(room);
}

void state_check(const char *dir, int64_t step)
{
    struct ckpt *c;
    struct err e = {0};
    if (ckpt_open(&c, dir, step, &e) < 0)
        fail_msg("%s", e.text);
    struct state *s = state_make(step);
    for (int i = 0; i < STATE_MODEL; i++)
        check_tensor(c, step, "model", &s->model[i]);
    for (int i = 0; i < STATE_TRAIN; i++)
        check_tensor(c, step, "train", &s->train[i]);
    const cJSON *half = cJSON_GetObjectItemCaseSensitive(ckpt_meta(c), "half");
    assert_true(cJSON_IsNumber(half) && half->valuedouble == (double)step / 2);
    state_free(s);
    ckpt_close(c);
}
