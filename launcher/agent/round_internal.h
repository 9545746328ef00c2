/* What round.c and round_parts.c share; for them alone. */
#ifndef CRUN_LAUNCHER_ROUND_INTERNAL_H
#define CRUN_LAUNCHER_ROUND_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>

#include "common/rdzv/machine/rdzv.h"
#include "launcher/agent/round.h"
#include "launcher/observe/timeline.h"

struct round {
    struct rdzv_news news;  /* of the current one */
    uint64_t output;        /* number of the round whose pipes and folders it uses */
    int previous_base;      /* rank of our first worker in the one before, -1: none */
    struct timeline times;  /* of the restart that it is */
    struct timeline broken; /* of the restart that follows, once a worker of it has failed */
    uint64_t kept; /* the furthest state that a worker of the round before kept (crun_keeps()), + 1; 0: none did */
    bool wait_first_step; /* the workers of the broken round knew libcrun: the line of times waits for the first step */
    bool wait_met;        /* they met at the store: it waits for that, if not for the first step */
    bool unstarted;       /* its workers cannot be started, and that is reported */
};

struct round_part {
    const char *name;
    int (*begin)(struct run *r, const struct rdzv_news *news, struct err *e); /* < 0: the round cannot begin */
    void (*started)(struct run *r, int64_t now_ns);                           /* all workers execute their program */
    void (*gone)(struct run *r, int64_t now_ns);                              /* nobody of it is left */
};

/* round_parts.c: begin and started go down, gone goes up. */
extern const struct round_part round_parts[];
extern const int round_parts_n;

#endif
