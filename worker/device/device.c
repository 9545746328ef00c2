/* The table of devices. */
#include "worker/device/device.h"

#include <errno.h>
#include <string.h>

#include "common/err.h"

#ifdef HAVE_CPU_DEVICE
static const struct device_ops *const cpu_ops = &device_cpu_ops;
#else
static const struct device_ops *const cpu_ops = NULL;
#endif

const char *update_rule_name(enum update_rule r)
{
    static const char *const names[] = {
#define X(name, text) text,
        UPDATE_RULES(X)
#undef X
    };
    return names[r];
}

int device_open(struct device **ret, const char *name, const struct device_options *o, struct err *e)
{
    if (o->threads < 1)
        return err_set(e, -EINVAL, "%d compute threads (expected at least 1)", o->threads);
    if (!strcmp(name, "ref"))
        return device_ref_ops.open(ret, o, e);
    if (!strcmp(name, "cuda"))
        return err_set(e, -ENODEV, "this build has no cuda device; --device cpu or ref will do");
    if (strcmp(name, "cpu") && strcmp(name, "auto"))
        return err_set(e, -EINVAL, "unknown device '%s' (expected one of auto, ref, cpu, cuda)", name);
    if (!cpu_ops)
        return err_set(e, -ENODEV, "this build has no cpu device (oneDNN was missing); --device ref is there");
    return cpu_ops->open(ret, o, e);
}
