/* The device under test: the GPU. A program with this rig skips as a whole, with the device's own sentence, where there
 * is none. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "tests/conformance/device_rig.h"

const char *const rig_device = "cuda";

int rig_open(struct device **ret, const char *name, const struct device_options *o, struct err *e)
{
    return device_open(ret, name, o, e);
}

/* Before main(): the suites know nothing of devices that may be missing. */
__attribute__((constructor)) static void skip_without_gpu(void)
{
    struct device *d = NULL;
    struct err e = {0};
    const int rc = device_open(&d, "cuda", &(struct device_options){.threads = 1}, &e);
    if (rc == 0) {
        d->ops->close(d);
        return;
    }
    printf(rc == -ENODEV ? "1..0 # SKIP %s\n" : "1..1\nnot ok 1 - %s\n", e.text);
    fflush(stdout);
    exit(rc == -ENODEV ? 0 : 1);
}

size_t rig_plan_bytes(const struct plan *pl)
{
    struct plan_memory m;
    pl->ops->plan_memory(pl, &m);
    return m.activations;
}

void rig_plan_profile(const struct plan *pl, FILE *f)
{
    fail_msg("the profile of a GPU's plan is its run_trace");
}
