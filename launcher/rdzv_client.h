/* The agent's side of a rendezvous, wherever it lives (DESIGN, section 2): the machine common/rdzv.h in this process
 * (rdzv_client_local.c), rendezvousd, Redis or a directory.
 *
 * Calls return at once. News comes through on_news on the loop's thread, possibly from inside join, fail, done or leave: it only
 * queues. A client asks for the next news by itself. */
#ifndef CRUN_LAUNCHER_RDZV_CLIENT_H
#define CRUN_LAUNCHER_RDZV_CLIENT_H

#include <uv.h>

#include "common/rdzv.h"

struct err;
struct rdzv_client;

struct rdzv_client_options {
    struct rdzv_config job;
    const char *node; /* id of this node */
    const char *addr; /* address other nodes reach it by */
    int slots;
    void (*on_news)(void *arg, const struct rdzv_news *news);
    void *arg;
};

struct rdzv_client_ops {
    const char *name;
    int (*open)(struct rdzv_client **ret, uv_loop_t *loop, const struct rdzv_client_options *o, struct err *e);
    int (*join)(struct rdzv_client *c, struct err *e); /* ready for the next round: none of our workers is left */
    int (*fail)(struct rdzv_client *c, const struct rdzv_cause *cause, struct err *e);
    int (*done)(struct rdzv_client *c, struct err *e);
    int (*leave)(struct rdzv_client *c, struct err *e);
    void (*close)(struct rdzv_client *c); /* NULL allowed; no news after it */
};

struct rdzv_client {
    const struct rdzv_client_ops *ops; /* first member of every home's struct */
};

extern const struct rdzv_client_ops rdzv_client_local_ops;

#endif
