/* The order of samples in a checkpoint's manifest: where in its epoch a run goes on. */
#ifndef CRUN_WORKER_SNAPSHOT_ORDER_H
#define CRUN_WORKER_SNAPSHOT_ORDER_H

#include <cjson/cJSON.h>
#include <stdint.h>

struct err;
struct sampler;
struct snapshot_identity;

/* Member "order": which samples an epoch has, and in which order. */
void meta_add_order(cJSON *meta, const struct sampler *order);

/* In the middle of an epoch another order would take samples twice and others not at all: ERR_MISMATCH names both. */
int meta_check_order(const cJSON *meta, const struct sampler *order, struct err *e);

/* The place in the epoch is a number of samples: steps of the old batch as steps of ours. What was over stays over. */
int64_t meta_place(const cJSON *meta, int64_t step, const struct snapshot_identity *id);

#endif
