/* The guardian's helper processes (beside.h): which ones there are; each is replaced when it dies. */
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
    /* the life of the process; returns its exit code. NULL: not wanted, or not possible */
    int (*run)(const struct neighbour *self, int guardian_fd);
    bool is_told; /* print a line when it is replaced, because nobody else does */
    int started;  /* so far */
    int brief;    /* how many of the last ones in a row ended at once */
    int64_t started_ms;
    const struct neighbours *all;
};

struct neighbours {
    struct neighbour v[NEIGHBOURS];
    const struct guardian_programs *programs;
    const struct guardian_link *link;
    pid_t guardian, agent;
    int agent_fd; /* pidfd; -1: there is none yet */
    /* for the output process: its ends of the sockets to the agent, for output and for homes, and a standard input
     * that was put aside. The guardian keeps them for a replacement. -1: none (yet), or no process can be started */
    int output_fd, home_fd, input_fd;
    void (*leave)(void *arg); /* called in the new process: closes what belongs to the guardian alone */
    void *arg;
};

/* Fill in all but v; the struct must not move afterwards. */
void neighbours_name(struct neighbours *all);

/* Start a helper, unless it is there already or not wanted. If it cannot be started, that is not tried again; an
 * output process's descriptors are closed then, so that others see its end, except for consoles that are files:
 * their pipes are still read (neighbours_drain()). False: it is wanted, and there is none. */
bool neighbours_start(struct neighbours *all, enum neighbour_id which);

/* At the end, without an output process: write what is in the pipes of console files, however long it takes. */
void neighbours_drain(const struct neighbours *all);

/* Fill fds for poll(2). Returns how many of them, from the first on, to poll: poll(2) takes no more than
 * RLIMIT_NOFILE. */
int neighbours_poll(const struct neighbours *all, struct pollfd fds[NEIGHBOURS]);
/* After poll(2): replace each helper that is gone, unless the agent is ending, or the helper's work was done. */
void neighbours_look(struct neighbours *all, const struct pollfd fds[NEIGHBOURS], bool agent_ends);

/* In a new process: close what belongs to all helpers except `self`. self NULL: to all. */
void neighbours_leave(struct neighbours *all, const struct neighbour *self);

#endif
