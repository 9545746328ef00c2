/* The failure report: who failed first, and what people want to know about it. Every failed worker of the job is a JSON
 * object, made by the agent that saw it end; group rank 0's agent puts them in order, shows them as text, and writes
 * them to a file. Pure. */
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
    bool told_to_stop; /* it ended after we had sent it a signal: a consequence, not a failure */
    unsigned order;    /* 1, 2, ... in the order in which the kernel reported the deaths, or crun found it to hang */
    int64_t ended_ns;  /* monotonic; when it was found to hang */
    struct ending ending;
    char hung[72]; /* "hung at step 99": it was stopped for that, so its ending says nothing; "": it did not hang */
};

/* It ended badly, and by itself, or hung. */
bool failure_is(const struct failure_worker *w);

/* Index of the first culprit, -1 if nobody failed by itself. */
int failure_first(const struct failure_worker *w, int n);

/* What is known of a worker besides; a NULL is left out. */
struct failure_words {
    const char *host, *node;
    const char *message, *message_from; /* its error record, and where that stood */
    const char *core, *gpu;
    const char *because;           /* follows its ending (causes.h) */
    const char *xid;               /* what the driver of its GPUs reported */
    const char *memory;            /* oom_kills_text(), if it was killed for want of memory */
    const char *phase;             /* what it was doing, as libcrun recorded it; NULL: not used */
    int64_t step;                  /* the last that it finished, -1: none */
    const struct lines_tail *tail; /* of its stderr */
    const char *tail_late;         /* why there is none; NULL: there is, or none was wanted */
    double time;                   /* when it ended, seconds since 1970 by this node's clock */
};

#define FAILURE_TAIL_LINES 20
#define FAILURE_TAIL_BYTES 2048
#define FAILURE_TEXT_MAX 65536 /* bytes of a node's report */

/* The object of a worker, all of it UTF-8; freed by cJSON_Delete(). NULL: no memory. */
struct cJSON *failure_describe(const struct failure_worker *w, const struct failure_words *words);

struct failure_job {
    const char *run_id, *program;
    uint64_t round;
    int restarts, max_restarts;
    double restart_window; /* seconds; 0: all restarts count */
    int exit_code;
    const char *cause; /* in the rendezvous' words, "": it gave none */
    int culprit;       /* rank of the first that failed, as the rendezvous had it, -1: none */
    int unheard;       /* nodes of the round that reported nothing */
};

/* A node's report: its failures, and whether more may come. Freed by free(). NULL: no memory. */
char *failure_encode(const struct cJSON *own, bool final);
/* Append what another node reported; what is no failure is left out. False: it cannot be understood. */
bool failure_merge(struct cJSON *all, const char *text, size_t n, bool *ret_final);

/* The culprit first, the others as their nodes' clocks have it. */
void failure_sort(struct cJSON *all, int culprit);

/* The report as text with newlines, of a sorted array. */
int failure_render(const struct failure_job *j, const struct cJSON *all, struct buf *out);

/* The same as JSON, freed by free(). NULL: no memory. */
char *failure_json(const struct failure_job *j, const struct cJSON *all);
/* The same on one line of at most so many bytes: the last failures are left out where it is too long ("more": how
 * many). NULL: no memory, or no room for even one. */
char *failure_json_short(const struct failure_job *j, const struct cJSON *all, size_t max);

/* What a launcher around crun reads (TORCHELASTIC_ERROR_FILE): the culprit's error record in torchrun's format, made of
 * its message or else of how it ended. Freed by free(). NULL: no memory. */
char *failure_record_json(const struct failure_job *j, const struct cJSON *all);

#endif
