/* Writes and checks in a manifest what was held out. */
#include "worker/snapshot/snapshot_split.h"

#include "common/base/err.h"
#include "common/json/json.h"
#include "worker/config/config.h"
#include "worker/snapshot/snapshot.h"

void meta_add_split(cJSON *meta, const struct snapshot_identity *id)
{
    cJSON *o = cJSON_AddObjectToObject(meta, "val_split");
    cJSON_AddNumberToObject(o, "share", id->cfg->val_split);
    cJSON_AddNumberToObject(o, "held_out", id->cfg->val_split > 0 ? (double)id->test_images : 0);
}

int meta_check_split(const cJSON *meta, const struct snapshot_identity *id, struct err *e)
{
    const double now = id->cfg->val_split;
    double was = 0; /* an older checkpoint, of when nothing was held out */
    json_f64(cJSON_GetObjectItemCaseSensitive(meta, "val_split"), "share", &was, NULL);
    if (was == now || (id->evaluate && now == 0))
        return 0;
    return err_set(e, ERR_MISMATCH,
                   "--val-split was %g and is %g: samples that were trained on would be held out; leave it as it was",
                   was, now);
}
