/* The processes beside the agent (beside.h): which there are, and that another takes the place of one that dies. */
#ifndef CRUN_LAUNCHER_NEIGHBOURS_H
#define CRUN_LAUNCHER_NEIGHBOURS_H

#include <poll.h>
#include <stdbool.h>
#include <stdint.h>

#include "launcher/guard/beside.h"

struct guardian_link;
struct guardian_programs;
struct neighbours;

enum neighbour_id {
    NEIGHBOUR_OUTPUT, /* launcher/output/process/output_process.h */
    NEIGHBOUR_GAUGES, /* launcher/observe/gauges.h */
    NEIGHBOUR_DEPUTY, /* deputy.h */
    NEIGHBOURS
};

struct neighbour {
    struct beside beside;
    const char *name; /* for people */
    /* The whole life of the process: its exit code. NULL: it is not wanted, or cannot be. */
    int (*run)(const struct neighbour *self, int guardian_fd);
    bool is_told; /* a line is printed when another takes its place: nobody else does */
    int started;  /* so far */
    int brief;    /* of them the last ones ended at once */
    int64_t started_ms;
    const struct neighbours *all;
};

struct neighbours {
    struct neighbour v[NEIGHBOURS];
    const struct guardian_programs *programs;
    const struct guardian_link *link;
    pid_t guardian, agent;
    int agent_fd; /* pidfd; -1: there is none yet */
    /* The output process's: its ends of the sockets to the agent, for output and for homes, and a standard input that
     * was put aside. The guardian keeps them for the next one. -1: there is none, or none yet, or no process can be. */
    int output_fd, home_fd, input_fd;
    void (*leave)(void *arg); /* in one of them: gives up what is the guardian's own */
    void *arg;
};

/* All but v is set, and stays where it is. */
void neighbours_name(struct neighbours *all);

/* Where it cannot be started, it is not tried again. The descriptors of an output process are closed then, so that
 * others see its end, but for consoles that are files: what is in their pipes is to be read (neighbours_drain()). One
 * that is there already, or is not wanted: nothing. False: there should be one, and is none. */
bool neighbours_start(struct neighbours *all, enum neighbour_id which);

/* At the end, without an output process: write what is in the pipes of consoles that are files, however long that
 * takes. */
void neighbours_drain(const struct neighbours *all);

/* How many of them are to be waited for, the first ones: poll(2) takes no more than RLIMIT_NOFILE. */
int neighbours_poll(const struct neighbours *all, struct pollfd fds[NEIGHBOURS]);
/* After poll(2): another in place of each that is gone, unless the agent ends, or its work was done. */
void neighbours_look(struct neighbours *all, const struct pollfd fds[NEIGHBOURS], bool agent_ends);

/* In a process that is none of them, or but this one: closes what is theirs. NULL: none. */
void neighbours_leave(struct neighbours *all, const struct neighbour *self);

#endif
