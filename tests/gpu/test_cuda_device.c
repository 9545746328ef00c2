/* The GPU suite: skipped, with the device's own sentence, where there is none. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "common/base/err.h"
#include "worker/device/device.h"

int main(void)
{
    struct device *d = NULL;
    struct err e = {0};
    struct device_options o = {.threads = 1};
    int rc = device_open(&d, "cuda", &o, &e);
    if (rc == -ENODEV && e.text[0] && !strchr(e.text, '\n')) {
        printf("1..0 # SKIP %s\n", e.text);
        return 0;
    }
    printf("1..1\n%s 1 - the cuda device opens or says in one sentence why not\n", rc == 0 ? "ok" : "not ok");
    if (rc == 0)
        d->ops->close(d);
    else
        printf("# %d: %s\n", rc, e.text);
    return rc != 0;
}
