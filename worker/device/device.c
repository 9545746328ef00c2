/* The table of devices. */
#include "worker/device/device.h"

#include <errno.h>
#include <string.h>

#include "common/base/err.h"
#include "common/base/log.h"
#include "worker/device/module/module.h"

#ifdef HAVE_CPU_DEVICE
static const struct device_ops *const cpu_ops = &device_cpu_ops;
#else
static const struct device_ops *const cpu_ops = NULL;
#endif

const char *update_rule_name(enum update_rule r)
{
    static const char *const names[] = {UPDATE_RULES(CHOICE_NAME)};
    return names[r];
}

static int open_cuda(struct device **ret, const struct device_options *o, struct err *e)
{
    const struct cuda_module *m = cuda_module(e);
    if (!m || m->count(e) == 0) {
        err_wrap(e, "device cuda");
        return -ENODEV;
    }
    struct device_options own = *o;
    TRY(gpu_choose(&o->choice, m->count(NULL), &own.index, e));
    return m->device->open(ret, &own, e);
}

/* Is a GPU there that this program can use? A GPU that it cannot use is reported: nobody wants to train on the CPU
 * beside it. */
static bool have_cuda(void)
{
    struct err e = {0};
    if (!cuda_likely())
        return false;
    const struct cuda_module *m = cuda_module(&e);
    if (m && m->count(&e) > 0)
        return true;
    log_warn("device", "there may be a GPU here, but the cpu device is used: %s", e.text);
    return false;
}

int device_open(struct device **ret, const char *name, const struct device_options *o, struct err *e)
{
    if (o->threads < 1)
        return err_set(e, -EINVAL, "%d compute threads (expected at least 1)", o->threads);
    if (!strcmp(name, "ref"))
        return device_ref_ops.open(ret, o, e);
    if (!strcmp(name, "cuda"))
        return open_cuda(ret, o, e);
    if (strcmp(name, "cpu") && strcmp(name, "auto"))
        return err_set(e, -EINVAL, "unknown device '%s' (expected one of auto, ref, cpu, cuda)", name);
    if (!strcmp(name, "auto") && have_cuda())
        return open_cuda(ret, o, e);
    if (!cpu_ops)
        return err_set(e, -ENODEV, "this build has no cpu device (oneDNN was missing); --device ref is there");
    return cpu_ops->open(ret, o, e);
}
