/* Puts a device's choices into a manifest, and takes them up again. */
#include "worker/state/choices.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "common/base/log.h"
#include "worker/ckpt/ckpt.h"
#include "worker/comm/comm.h"
#include "worker/device/device.h"

int choices_add(struct device *d, cJSON *meta, struct err *e)
{
    char *text = NULL;
    if (!d->ops->choices)
        return 0;
    TRY(d->ops->choices(d, &text, e));
    cJSON *plans = cJSON_Parse(text);
    free(text);
    if (!plans || !cJSON_AddItemToObject(meta, "plans", plans)) {
        cJSON_Delete(plans);
        return err_set(e, -ENOMEM, "no memory for the list of plans");
    }
    return 0;
}

/* malloc'ed; "" where there is none: the checkpoint itself is judged when it is resumed from. */
static char *stored(const char *dir)
{
    int64_t step = -1;
    struct ckpt *c = NULL;
    char *text = NULL;
    if (ckpt_newest(dir, INT64_MAX, &step, NULL) == 0 && step >= 0 && ckpt_open(&c, dir, step, NULL) == 0) {
        const cJSON *plans = cJSON_GetObjectItemCaseSensitive(ckpt_meta(c), "plans");
        text = plans ? cJSON_PrintUnformatted(plans) : NULL;
        ckpt_close(c);
    }
    return text ? text : strdup("");
}

int choices_share(struct device *d, struct comm *c, int root, int rc, struct err *e)
{
    struct err why;
    char *text = NULL;
    if (c->rank == root && rc == 0)
        rc = d->ops->choices(d, &text, e);
    rc = comm_share(c, root, rc, "plans", &text, e);
    if (rc == 0 && c->rank != root && d->ops->choose(d, text, &why) < 0)
        log_warn("device", "%s: this rank computes with another engine than rank %d", why.text, root);
    free(text);
    return rc;
}

int choices_take_up(struct device *d, struct comm *c, const char *dir, struct err *e)
{
    struct err why;
    if (!d->ops->choose)
        return 0;
    char *text = c->rank == 0 ? stored(dir) : NULL;
    int rc = c->rank == 0 && !text ? err_set(e, -ENOMEM, "no memory for plans") : 0;
    rc = comm_share(c, 0, rc, "plans", &text, e);
    if (rc == 0 && *text && d->ops->choose(d, text, &why) < 0)
        log_warn("device", "%s: planned anew, results may differ from the checkpoint's run in the last bits", why.text);
    free(text);
    return rc;
}
