/* What one rank is built of, as far as options, data sets and the layout say it: without peers, and but for the device
 * without memory. A run (session.c) goes on from there; a forecast (forecast.c) counts. */
#ifndef CRUN_WORKER_SESSION_BUILD_H
#define CRUN_WORKER_SESSION_BUILD_H

#include "worker/data/loader/loader.h"
#include "worker/session/session.h"

struct gpu_choice;

/* An empty session of `rank`; threads and the optimizer's rule are chosen. */
void session_begin(struct session *s, const struct train_config *cfg, int rank, int local_world, int nodes);

/* In this order, each with what is before it. All close with session_close(). */
int session_open_data(struct session *s, struct err *e);
/* What training asks of classes: s->loss, the weights of classes that it reads, and s->by_class. ERR_USAGE: there is
 * not one weight for each class, labels are not known before samples are read, or the model reads tokens. ERR_DATA: a
 * class has no sample. */
int session_open_classes(struct session *s, struct err *e);
int session_build_model(struct session *s, struct err *e); /* s->layout; the part that this rank has */
int session_open_device(struct session *s, const struct gpu_choice *c, struct err *e);
int session_resolve_precision(struct session *s, struct err *e);
void session_describe_precision(struct session *s);            /* precision_text */
int session_build_ownership(struct session *s, struct err *e); /* and the optimizer's slices */

int session_labels(const struct session *s); /* classes of the last layer */
struct state_options session_state(const struct session *s);
struct sampler session_order(const struct session *s, bool training);
size_t session_part(const struct session *s, bool training); /* samples that go through the model at once */
struct plan_options session_plan(const struct session *s, bool training); /* over the arenas of s->state */
bool session_loads(const struct session *s);                              /* images: the first stage does */
/* train_plan or test_plan, or the stage of plans. forecast: it is never run, and needs no ddp. */
int session_open_plan(struct session *s, bool training, bool forecast, struct err *e);
void session_close_plan(struct session *s, bool training); /* if it is open */
struct loader_options session_loader(const struct session *s, bool training);

#endif
