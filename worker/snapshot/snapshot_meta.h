/* The manifest's "meta": where a run stood and what it was, written, checked and read. */
#ifndef CRUN_WORKER_SNAPSHOT_META_H
#define CRUN_WORKER_SNAPSHOT_META_H

#include <cjson/cJSON.h>
#include <stdbool.h>

struct err;
struct loss_scale;
struct position;
struct snapshot_identity;

/* For ckpt_save(). The caller's to cJSON_Delete(); NULL: no memory. */
cJSON *meta_make(const struct position *at, const struct snapshot_identity *id);
/* Which checkpoint is the best so far, alone: for ckpt_amend(). The caller's to cJSON_Delete(). */
cJSON *meta_best(const struct position *at);
/* How the losses of this run are scaled. Of a run of another precision, or another choice of --loss-scale, only
 * the number of skipped steps is taken: the scale begins anew, which is logged if tell. */
void meta_add_scale(cJSON *meta, const struct loss_scale *s);
void meta_take_scale(const cJSON *meta, const struct snapshot_identity *id, bool tell, struct loss_scale *s);
/* Does it fit this run? ERR_MISMATCH names both values. tell: log what differs and is taken. */
int meta_check(const cJSON *meta, const struct snapshot_identity *id, bool tell, struct err *e);
/* What an older checkpoint lacks stays as it is. */
int meta_position(const cJSON *meta, struct position *at, struct err *e);
/* With another --best-by no evaluation is the best so far. */
void meta_forget_best(const cJSON *meta, const struct snapshot_identity *id, struct position *at);
bool meta_same_optimizer(const cJSON *meta, const struct snapshot_identity *id);

#endif
