/* What NCCL's RAS answers to a question: of each communicator, how many collectives of each type each rank has
 * launched. Not in it: sends and receives, what a CUDA graph launches, and whether anything was completed. Pure: text
 * in, numbers out (docs.nvidia.com, NCCL user guide, RAS; the form of NCCL 2.28.7 and later). */
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

/* Who may be meant: RAS says process ids and addresses of hosts. node: any number that tells nodes apart. */
struct ras_process {
    pid_t pid;
    int rank, node; /* of the job */
};

struct ras_place {
    char host[46]; /* INET6_ADDRSTRLEN: an address of the node's host, none of the loopback */
    int node;
};

struct ras_job {
    struct ras_process *processes;
    struct ras_place *places;
    size_t n_processes, n_places, processes_cap, places_cap;
};

struct ras_rank { /* a place in a communicator */
    int rank;     /* of the job */
    bool missing; /* RAS does not reach its process */
    uint64_t counts[RAS_TYPES_MAX];
};

struct ras_comm {
    char hash[20], second[44]; /* hexadecimal digits; shown, and to tell equal hashes apart */
    int size, n;
    bool settled; /* all of it is known: no rank initializes, ends or has an error, and each is one of the job's */
    struct ras_rank *ranks; /* (n), in the order of the job's ranks */
};

struct ras_answer {
    int version; /* 22902 */
    char version_text[24];
    char types[RAS_TYPES_MAX][24]; /* "AllReduce" */
    int n_types, n_comms;
    struct ras_comm *comms; /* in the order of their hashes */
    int ours, strangers;    /* places whose process is one of the job's, and others */
};

/* job: all of it, in any order; its processes are sorted here. The result is freed by ras_answer_free(). ERR_CORRUPT:
 * it is no answer of RAS; -ENOMEM. */
int ras_answer_read(const struct buf *text, const struct ras_job *job, struct ras_answer *ret, struct err *e);
void ras_answer_free(struct ras_answer *a);

/* No rank has launched anything between the two, and they know the same communicators. */
bool ras_stands_still(const struct ras_answer *before, const struct ras_answer *after);

enum ras_finding {
    RAS_KNOWS_NOTHING, /* there is no communicator to judge by */
    RAS_ALIKE,         /* all ranks of each have launched the same: it cannot tell */
    RAS_LATE,          /* some have launched less than others, which wait for them */
    RAS_MISSES,        /* RAS does not reach some */
    RAS_OTHER_CALLS,   /* ranks have launched collectives of different types where one is due */
    RAS_CIRCLE,        /* each that is late in one communicator waits in another one */
};

struct ras_verdict {
    enum ras_finding finding;
    bool *late; /* (world), the caller's: who is to blame. RAS_CIRCLE: all that are late somewhere */
    int n_late, first;
    char text
        [320]; /* "rank 5 has not launched all-reduce 6,650 of communicator 27a079b828ff1a75; 31 ranks wait in it" */
};

/* One answer, taken for itself. ret->late is filled, and the rest set. */
void ras_judge(const struct ras_answer *a, int world, struct ras_verdict *ret);

#endif
