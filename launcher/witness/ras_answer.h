/* Parses the answer of NCCL's RAS: for each communicator, how many collectives of each type each rank has launched.
 * Not included: sends and receives, launches from CUDA graphs, and whether anything has completed. Pure: text in,
 * numbers out (docs.nvidia.com, NCCL user guide, RAS; the format of NCCL 2.28.7 and later). */
#ifndef CRUN_LAUNCHER_RAS_ANSWER_H
#define CRUN_LAUNCHER_RAS_ANSWER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct buf;
struct err;

#define RAS_TYPES_MAX 16           /* of collectives; others are left out */
#define RAS_LEAST_VERSION 22902    /* below 2.29.2 questions have crashed jobs (NCCL's issues 1669, 1718, 1762) */
#define RAS_ANSWER_MAX (32u << 20) /* bytes: some 80,000 places in communicators */

/* A process of the job: RAS names pids and addresses of hosts. node: any number that distinguishes nodes. */
struct ras_process {
    pid_t pid;
    int rank, node; /* of the job */
};

struct ras_place {
    char host[46]; /* an address of the node's host, not a loopback one; INET6_ADDRSTRLEN */
    int node;
};

struct ras_job {
    struct ras_process *processes;
    struct ras_place *places;
    size_t n_processes, n_places, processes_cap, places_cap;
};

int ras_job_copy(struct ras_job *ret, const struct ras_job *from); /* -ENOMEM; its arrays are freed by free() */

struct ras_rank { /* a place in a communicator */
    int rank;     /* of the job */
    int place;    /* its rank in the communicator; one process may have several */
    bool missing; /* RAS does not reach its process */
    uint64_t counts[RAS_TYPES_MAX];
};

struct ras_comm {
    char hash[20], second[44]; /* hexadecimal digits; shown to people; `second` distinguishes equal hashes */
    int size, n;
    bool
        settled; /* complete: no rank is initializing, ending or has an error, all belong to the job, and have counts */
    struct ras_rank *ranks; /* (n), in the order of the job's ranks; each place once */
};

struct ras_answer {
    int version; /* 22902 */
    char version_text[24];
    char types[RAS_TYPES_MAX][24]; /* "AllReduce" */
    int n_types, n_comms;
    struct ras_comm *comms; /* in the order of their hashes */
    int ours, strangers;    /* number of ranks whose process belongs to the job; number of others */
};

/* job: all of its processes, in any order; they are sorted here. Free the result with ras_answer_free().
 * ERR_CORRUPT: not an answer of RAS; -ENOMEM. */
int ras_answer_read(const struct buf *text, const struct ras_job *job, struct ras_answer *ret, struct err *e);
void ras_answer_free(struct ras_answer *a);

/* Has no rank launched anything between two answers, and do both list the same communicators? */
bool ras_stands_still(const struct ras_answer *before, const struct ras_answer *after);

enum ras_finding {
    RAS_KNOWS_NOTHING, /* there is no communicator to judge by */
    RAS_ALIKE,         /* in each communicator all ranks have launched the same: RAS cannot tell */
    RAS_LATE,          /* some ranks have launched less than others, which wait for them */
    RAS_MISSES,        /* RAS does not reach some */
    RAS_OTHER_CALLS,   /* ranks have launched different types of collectives in the same place */
    RAS_CIRCLE,        /* each rank that is late in one communicator waits in another one */
};

struct ras_verdict {
    enum ras_finding finding;
    bool *late; /* (world), owned by the caller: the ranks to blame; for RAS_CIRCLE all that are late anywhere */
    int n_late, first;
    char text
        [320]; /* "rank 5 has not launched all-reduce 6,650 of communicator 27a079b828ff1a75; 31 ranks wait in it" */
};

/* Judge one answer by itself: fills ret->late and sets the rest. */
void ras_judge(const struct ras_answer *a, int world, struct ras_verdict *ret);

#endif
