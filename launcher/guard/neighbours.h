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
    NEIGHBOUR_HOME,   /* common/rdzv/homes/home_process.h */
    NEIGHBOUR_GAUGES, /* launcher/observe/gauges.h */
    NEIGHBOUR_STDOUT, /* console_file.h */
    NEIGHBOUR_STDERR,
    NEIGHBOUR_DEPUTY, /* deputy.h */
    NEIGHBOUR_STDIN,  /* stdin_file.h */
    NEIGHBOURS
};

struct neighbour {
    struct beside beside;
    const char *name; /* for people */
    /* The whole life of the process: its exit code. NULL: it is not wanted, or cannot be. */
    int (*run)(const struct neighbour *self, int guardian_fd);
    /* What others see the end of where there can be no such process: its end of the socket to the agent, or of the pipe
     * that it reads or writes. The guardian keeps it for the next one. -1: there is none, or none yet. */
    int fd;
    bool needs_fd; /* without one there is nothing to do */
    bool is_told;  /* a line is printed when another takes its place: nobody else does */
    int started;   /* so far */
    int brief;     /* of them the last ones ended at once */
    int64_t started_ms;
    const struct neighbours *all;
};

struct neighbours {
    struct neighbour v[NEIGHBOURS];
    const struct guardian_programs *programs;
    const struct guardian_link *link;
    pid_t guardian, agent;
    int agent_fd;             /* pidfd; -1: there is none yet */
    void (*leave)(void *arg); /* in one of them: gives up what is the guardian's own */
    void *arg;
};

/* All but v is set, and stays where it is. output_fd: the output process's end of its socket to the agent. */
void neighbours_name(struct neighbours *all, int output_fd);

/* Where it cannot be started, it is not tried again, and fd is closed, but for that of a console: what is in its pipe
 * is to be read (neighbours_drain()). One that is there already, or is not wanted: nothing. False: there should be one,
 * and is none. */
bool neighbours_start(struct neighbours *all, enum neighbour_id which);

/* For a console without a process, at the end: write what is in its pipe, however long that takes. */
void neighbours_drain(struct neighbours *all, enum neighbour_id which);

/* How many of them poll(2) is to look at: up to the last one that is there, as more than may be open (ulimit -n) it
 * refuses. */
int neighbours_poll(const struct neighbours *all, struct pollfd fds[NEIGHBOURS]);
/* After poll(2): another in place of each that is gone, unless the agent ends, or its work was done: then fd is
 * closed. */
void neighbours_look(struct neighbours *all, const struct pollfd fds[NEIGHBOURS], bool agent_ends);

/* In a process that is none of them, or but this one: closes what is theirs. NULL: none. */
void neighbours_leave(struct neighbours *all, const struct neighbour *self);

#endif
