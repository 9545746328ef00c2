/* Opens a checkpoint or a bare file of weights, builds its model, and puts the parameters on a device. See loaded.h. */
#include "worker/cli/loaded.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "worker/config/cores.h"
#include "worker/manifest/manifest_model.h"
#include "worker/session/memory_room.h"
#include "worker/snapshot/pretrained.h"

int loaded_open(struct loaded *l, const char *path, const char *part, struct err *e)
{
    l->path = path;
    TRY(weights_open(&l->weights, path, part, e));
    weights_take_averages(l->weights);
    return 0;
}

int loaded_name(struct loaded *l, const char *arch, struct err *e)
{
    char name[MODEL_NAME_MAX + 1];
    model_name(arch, name);
    if (!(l->arch = strdup(name)))
        return err_errno(e, ENOMEM, "a model's name");
    l->model.arch = l->arch;
    l->model.text = l->text;
    return 0;
}

static int check_held(const struct loaded *l, struct err *e)
{
    int64_t held = 0;
    for (size_t i = 0; i < weights_count(l->weights); i++)
        held += ckpt_tensor_reals(weights_at(l->weights, i));
    return model_check_held(&l->model, held, e) < 0 ? err_wrap(e, "%s", l->path) : 0;
}

int loaded_build(struct loaded *l, const char *device, int64_t threads, struct err *e)
{
    const struct device_options o = {.threads = threads_of_rank(threads, 1)};
    const struct state_options none = {0};
    if (weights_meta(l->weights))
        TRY(check_held(l, e));
    TRY(model_build(&l->program, &l->model, e));
    TRY(device_open(&l->device, device, &o, e));
    TRY(ownership_init_alone(&l->own, l->program, e));
    TRY(state_init(&l->state, l->device, l->program, &l->own, &none, e));
    return pretrained_apply(&l->state, l->weights, l->path, false, e);
}

/* What a stranger's model would take, before it is taken. */
static int check_room(const void *ctx, size_t before, size_t more, struct err *e)
{
    const size_t bytes = before + more;
    struct memory_limit limit;
    const struct loaded *l = ctx;
    memory_limit_read("", &limit);
    if (bytes <= (size_t)limit.bytes)
        return 0;
    return err_set(e, ERR_MISMATCH, "model %s takes %.1f GiB for one sample, and %.1f GiB are allowed here (%s)",
                   l->arch, (double)bytes / (1 << 30), (double)limit.bytes / (1 << 30), limit.name);
}

int loaded_plan(struct loaded *l, struct program *p, struct plan **ret, struct err *e)
{
    const struct plan_options o = {.batch = 1,
                                   .compute = l->device->ops->real,
                                   .params = l->state.params,
                                   .stats = l->state.stats,
                                   .reduce = l->state.reduce,
                                   .room = check_room,
                                   .room_ctx = l};
    return l->device->ops->plan(l->device, p, &o, ret, e);
}

void loaded_close(struct loaded *l)
{
    state_finish(&l->state);
    ownership_finish(&l->own);
    if (l->device)
        l->device->ops->close(l->device);
    program_destroy(l->program);
    weights_close(l->weights);
    free(l->arch);
    free(l->text);
}

static const double *sort_by;

static int larger(const void *a, const void *b)
{
    const int x = *(const int *)a, y = *(const int *)b;
    return sort_by[x] > sort_by[y] ? -1 : sort_by[x] < sort_by[y] ? 1 : x - y;
}

void loaded_order(const double *v, int n, int *order)
{
    for (int i = 0; i < n; i++)
        order[i] = i;
    sort_by = v;
    qsort(order, (size_t)n, sizeof *order, larger);
}
