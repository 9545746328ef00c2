/* A node's last report of its workers and its host: a record of RDZV.REPORT, parsed and bounded. Pure. */
#ifndef CRUN_RENDEZVOUSD_NODE_FIGURES_H
#define CRUN_RENDEZVOUSD_NODE_FIGURES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/seeded_hash.h"

struct json_write;

#define NODE_FIGURES_RANKS 256
#define NODE_FIGURES_GPUS 64

struct rank_figures { /* NAN: not known */
    float step, step_ms, wait_ms;
};

struct gpu_figures {
    float percent, memory_mib, total_mib;
};

struct node_figures {
    char *node;
    double at_s; /* wall clock, when it was reported */
    int base, n; /* rank of its first worker, -1: not reported; ranks */
    struct rank_figures *ranks;
    float cpu, memory_mib, total_mib; /* cpu: 0 to 1; NAN: not known */
    int n_gpus;
    struct gpu_figures *gpus;
    UT_hash_handle hh; /* by node */
};

/* Take a report in. What is no number is not known, further ranks and GPUs are left out. -ENOMEM: some of it is in. */
int node_figures_take(struct node_figures *f, const char *fields, size_t n);
void node_figures_free(struct node_figures *f); /* its memory, not f */

/* The number of a field of a record, NAN: there is none. */
double node_figures_number(const char *fields, size_t n, const char *key);

float node_figures_slowest(const struct node_figures *f); /* step_ms; NAN: not known */

/* An object: "node", "age_s", "cpu", "memory", "memory_total" (MiB), "gpus"; of its ranks room, which it takes from. */
void node_figures_write(const struct node_figures *f, double now_s, struct json_write *w);
void node_figures_write_ranks(const struct node_figures *f, size_t *room, struct json_write *w);

/* As many digits as matter. */
void figures_number(struct json_write *w, const char *key, double v);

#endif
