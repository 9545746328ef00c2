/* What --val-split held out, in a checkpoint's manifest. */
#ifndef CRUN_WORKER_SNAPSHOT_SPLIT_H
#define CRUN_WORKER_SNAPSHOT_SPLIT_H

#include <cjson/cJSON.h>

struct err;
struct snapshot_identity;

/* Member "val_split": the share and how many samples it is; by which seed says the manifest. 0: nothing was. */
void meta_add_split(cJSON *meta, const struct snapshot_identity *id);

/* ERR_MISMATCH: another share would evaluate what was trained on. A run that holds nothing out may evaluate any. */
int meta_check_split(const cJSON *meta, const struct snapshot_identity *id, struct err *e);

#endif
