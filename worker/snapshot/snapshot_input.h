/* How pictures were prepared in training, kept in a checkpoint's manifest: predicting and evaluating need them the same
 * way. */
#ifndef CRUN_WORKER_SNAPSHOT_INPUT_H
#define CRUN_WORKER_SNAPSHOT_INPUT_H

#include <cjson/cJSON.h>
#include <stdbool.h>

struct err;
struct snapshot_identity;

void meta_add_input(cJSON *meta, const struct snapshot_identity *id);

/* A run that only evaluates: ERR_MISMATCH names both values where it prepares pictures otherwise. Others: logged, if
 * tell. An older manifest without these values is taken. */
int meta_check_input(const cJSON *meta, const struct snapshot_identity *id, bool tell, struct err *e);

#endif
