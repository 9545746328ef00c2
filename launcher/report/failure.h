/* The failure report: which worker failed first, and what people want to know about it. Every failed worker of the
 * job is a JSON object, made by the agent that saw it end; group rank 0's agent puts them in order, shows them as
 * text, and writes them to a file. Pure. */
#ifndef CRUN_LAUNCHER_FAILURE_H
#define CRUN_LAUNCHER_FAILURE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "launcher/base/ending.h"
#include "launcher/output/lines.h"

struct cJSON;

struct failure_worker {
    int rank, local_rank;
    pid_t pid;
    bool ended;
    bool told_to_stop; /* it ended after we had signalled it: a consequence, not a failure */
    unsigned order;    /* 1, 2, ... in the order in which the kernel reported the deaths, or crun found hangs */
    int64_t ended_ns;  /* monotonic; when it was found to hang */
    struct ending ending;
    /* number of processes of its cgroup that the kernel had killed in this round when it ended, because memory ran
     * out */
    uint64_t kills;
    /* "hung at step 99": it was stopped because it hung, so its ending means nothing; "": it did not hang */
    char hung[72];
};

/* Did this worker fail by itself, or hang? */
bool failure_is(const struct failure_worker *w);

/* Index of the first culprit, -1 if nobody failed by itself. */
int failure_first(const struct failure_worker *w, int n);

/* What else is known about a worker; NULL members are left out. */
struct failure_words {
    const char *host, *node;
    const char *message, *message_from; /* its error record, and where that stood */
    const char *core, *gpu;
    const char *because;           /* follows its ending (causes.h) */
    const char *xid;               /* what the driver of its GPUs reported */
    const char *link;              /* what became of a link of its machine */
    const char *memory;            /* oom_kills_text(), if it was killed because memory ran out */
    const char *phase;             /* the phase that libcrun recorded; NULL: it does not use libcrun */
    int64_t step;                  /* the last that it finished, -1: none */
    const struct lines_tail *tail; /* of its stderr */
    const char *tail_late;         /* why the last lines are missing; NULL: they are there, or not wanted */
    double time;                   /* when it ended: seconds since 1970 by this node's clock */
};

#define FAILURE_TAIL_LINES 20
#define FAILURE_TAIL_BYTES 2048
#define FAILURE_TEXT_MAX 65536 /* bytes of a node's report */

/* Make the JSON object of a worker, all of it UTF-8; freed by cJSON_Delete(). NULL: no memory. */
struct cJSON *failure_describe(const struct failure_worker *w, const struct failure_words *words);

struct failure_job {
    const char *run_id, *program;
    uint64_t round;
    int restarts, max_restarts;
    double restart_window; /* seconds; 0: all restarts count */
    int exit_code;
    const char *cause;          /* in the rendezvous' words, "": it gave none */
    int culprit;                /* rank of the first failure according to the rendezvous, -1: none */
    int unheard;                /* nodes of the round that reported nothing */
    const struct cJSON *faults; /* of machines: an array of failure_add_fault() */
};

/* Append that a node's machine had a fault: "eth0 went down". NULL: it had none. */
void failure_add_fault(struct cJSON *faults, const char *node, const char *fault);
/* "; on node2: eth0 went down", by hosts, for the faults of all nodes but that one; NULL: of all. */
int failure_render_faults(const struct cJSON *faults, const char *but, struct buf *out);

/* Encode a node's failures, the fault of its machine (NULL: none), and whether more may follow. Freed by free(). NULL:
 * no memory. */
char *failure_encode(const struct cJSON *own, const char *fault, bool final);
/* Append what a node reported; members that are not failures are left out. faults NULL: not wanted. False: it cannot
 * be parsed. */
bool failure_merge(struct cJSON *all, struct cJSON *faults, const char *node, const char *text, size_t n,
                   bool *ret_final);

/* Sort: the culprit first, the others by their nodes' clocks. */
void failure_sort(struct cJSON *all, int culprit);

/* The first of a sorted array, if it is the rank that the rendezvous blames. That rank may have reported nothing,
 * because its node died: NULL. */
const struct cJSON *failure_culprit(const struct failure_job *j, const struct cJSON *all);

/* Write the report of a sorted array as text with newlines. */
int failure_render(const struct failure_job *j, const struct cJSON *all, struct buf *out);

/* The same as JSON, freed by free(). NULL: no memory. */
char *failure_json(const struct failure_job *j, const struct cJSON *all);
/* The same on one line of at most max bytes: if it is too long, the last failures are left out ("more" counts them).
 * NULL: no memory, or not even one fits. */
char *failure_json_short(const struct failure_job *j, const struct cJSON *all, size_t max);

/* The error record for a launcher around crun (TORCHELASTIC_ERROR_FILE), in torchrun's format: the culprit's, made
 * from its message or else from how it ended. Freed by free(). NULL: no memory. */
char *failure_record_json(const struct failure_job *j, const struct cJSON *all);

#endif
