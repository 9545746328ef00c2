/* The last report of a node about its workers and its host: a record of RDZV.REPORT, parsed and bounded. Pure. */
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
    int base, n; /* rank of its first worker, -1: not reported; number of ranks */
    struct rank_figures *ranks;
    float cpu, memory_mib, total_mib; /* cpu: 0 to 1; NAN: not known */
    int n_gpus;
    struct gpu_figures *gpus;
    UT_hash_handle hh; /* by node */
};

/* Take in a report. Values that are not numbers count as not known; further ranks and GPUs are left out. -ENOMEM: a
 * part was taken. */
int node_figures_take(struct node_figures *f, const char *fields, size_t n);
void node_figures_free(struct node_figures *f); /* its memory, not f */

/* The number of a field of a record, NAN: there is none. */
double node_figures_number(const char *fields, size_t n, const char *key);

float node_figures_slowest(const struct node_figures *f); /* step_ms; NAN: not known */

/* Write an object: "node", "age_s", "cpu", "memory", "memory_total" (MiB), "gpus". write_ranks: at most *room ranks,
 * which it reduces. */
void node_figures_write(const struct node_figures *f, double now_s, struct json_write *w);
void node_figures_write_ranks(const struct node_figures *f, size_t *room, struct json_write *w);

/* As many digits as matter. */
void figures_number(struct json_write *w, const char *key, double v);

#endif
