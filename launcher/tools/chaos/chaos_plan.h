/* A plan of faults for a job, as text (docs/guide/chaos.md describes it).
 *
 *     for 10m                            how long faults are drawn
 *     every 1.2s                         mean pause between two of them
 *     draw 2 kill worker                 2: its share of those that are drawn
 *     draw 1 stop guardian for 1s..6s and kill agent
 *     at 30s slow worker rank 0 by 4 for 10s
 *
 * Pure: no clock, no system call. */
#ifndef CRUN_LAUNCHER_CHAOS_PLAN_H
#define CRUN_LAUNCHER_CHAOS_PLAN_H

#include <stdbool.h>
#include <stdint.h>

struct err;

#define CHAOS_WORD_MAX 64
#define CHAOS_LINES_MAX 128
#define CHAOS_ACTS_MAX 4 /* of a line, joined by "and" */
#define CHAOS_NODES_MAX 64
#define CHAOS_DAY_MS INT64_C(86400000) /* the longest time in a plan is a week, 7 of these */

enum chaos_takes { CHAOS_TAKES_NONE, CHAOS_TAKES_WHO, CHAOS_TAKES_PATTERN };

/* id, word, what follows it, whether it lasts ("for"), whether it has a size ("by") */
#define CHAOS_DEEDS(X)                                                                                                 \
    X(CHAOS_KILL, "kill", CHAOS_TAKES_WHO, false, false)           /* SIGKILL */                                       \
    X(CHAOS_TERMINATE, "terminate", CHAOS_TAKES_WHO, false, false) /* SIGTERM */                                       \
    X(CHAOS_STOP, "stop", CHAOS_TAKES_WHO, true, false)            /* SIGSTOP, then SIGCONT */                         \
    X(CHAOS_SLOW, "slow", CHAOS_TAKES_WHO, true, true)             /* stopped in turns: runs 1/by of the time */       \
    X(CHAOS_CUT, "cut", CHAOS_TAKES_NONE, true, false)             /* the node's link is down */                       \
    X(CHAOS_FILL, "fill", CHAOS_TAKES_NONE, true, false)           /* the disk of its folder is full */                \
    X(CHAOS_CORRUPT, "corrupt", CHAOS_TAKES_PATTERN, false, false) /* one bit of one file in its folder */             \
    X(CHAOS_CLOCK, "clock", CHAOS_TAKES_NONE, true, true) /* its workers' wall clock is ahead by so many seconds */

enum chaos_deed {
#define X(id, word, takes, lasts, by) id,
    CHAOS_DEEDS(X)
#undef X
};

/* Processes of crun on a node, and "worker"; other words are defined by a target (chaos_target.h). */
#define CHAOS_ROLES(X)                                                                                                 \
    X(CHAOS_GUARDIAN, "guardian")                                                                                      \
    X(CHAOS_AGENT, "agent")                                                                                            \
    X(CHAOS_DEPUTY, "deputy")                                                                                          \
    X(CHAOS_OUTPUT, "output")                                                                                          \
    X(CHAOS_GAUGES, "gauges")                                                                                          \
    X(CHAOS_WORKER, "worker") /* has a rank */                                                                         \
    X(CHAOS_SPARE, "spare")   /* a warm one */                                                                         \
    X(CHAOS_NODE, "node")     /* crun and all below it */

enum chaos_role {
#define X(id, word) id,
    CHAOS_ROLES(X)
#undef X
        CHAOS_OTHER
};

struct chaos_span {
    int64_t least_ms, most_ms;
};

/* One thing that is done. */
struct chaos_act {
    enum chaos_deed deed;
    enum chaos_role role;      /* of deeds that take one */
    char word[CHAOS_WORD_MAX]; /* the target, or the pattern of a file's path */
    int node, rank;            /* -1: any */
    double by;                 /* slow: > 1; clock: seconds */
    struct chaos_span lasts;
};

struct chaos_line {
    int number;    /* line number in the text, from 1 */
    int weight;    /* > 0: drawn; 0: at at_ms */
    int64_t at_ms; /* since the beginning */
    int n;
    struct chaos_act acts[CHAOS_ACTS_MAX];
};

struct chaos_plan {
    int64_t for_ms, every_ms; /* 0: nothing is drawn */
    int n;
    struct chaos_line lines[CHAOS_LINES_MAX];
};

/* Parse a plan; text is overwritten. name: the file, for errors. ERR_USAGE: "FILE line N: ..." */
int chaos_plan_parse(struct chaos_plan *ret, char *text, const char *name, struct err *e);

const char *chaos_deed_word(enum chaos_deed deed);
bool chaos_deed_lasts(enum chaos_deed deed);
enum chaos_role chaos_role_of(const char *word); /* CHAOS_OTHER: not a role of crun's */
const char *chaos_role_word(enum chaos_role role);

#endif
