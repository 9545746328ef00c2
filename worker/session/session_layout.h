/* Inside of session.h: which ranks do what, and the communicators over which they do it. */
#ifndef CRUN_WORKER_SESSION_LAYOUT_H
#define CRUN_WORKER_SESSION_LAYOUT_H

#include <stddef.h>

struct env_contract;
struct err;
struct layout;
struct session;
struct train_config;

/* As the options say it for a world of so many ranks on so many nodes. Errors as below. */
int session_plan_layout(const struct train_config *cfg, int world, int nodes, struct layout *ret, struct err *e);

/* Plan anew for a world of so many: layout, batch, leads. ERR_USAGE: too few ranks, or what a split layer cannot do. */
int session_open_layout(struct session *s, int world, struct err *e);

/* Meet the others: comm, groups, group, ddp. After device and state are open. */
int session_open_comm(struct session *s, const struct env_contract *env, struct err *e);

/* "conv1 to layer2.1.relu": the layers of a stage, of each of its chunks. Returns out. */
enum { STAGE_TEXT_MAX = 600 };
char *session_stage_text(const struct session *s, int stage, char *out, size_t cap);

/* Lines to stderr where ranks share a layer, or the model is cut into stages. */
void session_layout_banner(const struct session *s);

#endif
