/* The device under test: the one of this build. */
#include "tests/conformance/device_rig.h"
#include "worker/device/cpu/cpu.h"

const char *const rig_device = "cpu";

int rig_open(struct device **ret, const char *name, const struct device_options *o, struct err *e)
{
    return device_open(ret, name, o, e);
}

size_t rig_plan_bytes(const struct plan *pl)
{
    return cpu_plan_bytes(pl);
}

void rig_plan_profile(const struct plan *pl, FILE *f)
{
    cpu_plan_profile(pl, f);
}
