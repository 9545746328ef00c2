/* What guardian and agent exchange about signals, and how long the guardian waits for an agent that ought to stop.
 *
 *   - the guardian counts what it forwards; the agent reports what it has read, and by when it will be gone or will
 *     name a later time;
 *   - the agent is given up, with all below it, if it has not read a stop signal within PATIENCE_MS, if the time that
 *     it named is over by PATIENCE_MS, or at a third SIGINT (the second one kills the workers: agent.h);
 *   - only time in which the guardian itself ran counts, not time in which the machine was suspended or the guardian
 *     stopped.
 *
 * Apart from a user's request to stop, only the end of its lease has consequences for an agent that does not react
 * (guardian.h).
 *
 * The board is memory that both processes share. The guardian's side is pure: times are clock_ms() values that the
 * caller brings. */
#ifndef CRUN_LAUNCHER_PATIENCE_H
#define CRUN_LAUNCHER_PATIENCE_H

#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define PATIENCE_MS 5000
#define PATIENCE_WARN_MS 1000 /* a signal unread for so long is logged as a warning */
#define PATIENCE_TICK_MS 250  /* ms between two looks while something is awaited */

/* SIGINTs closer together than this count as one: timeout(1) and others send two, and a held key repeats. For
 * guardian and agent. */
#define SIGINT_APART_MS 1000
#define SIGINT_TYPED_APART_MS 150

struct board {
    _Atomic uint32_t forwarded; /* signals, by the guardian */
    _Atomic uint32_t heard;     /* how many of them the agent has read */
    _Atomic bool takes;         /* the guardian is reading a signal that `forwarded` does not count yet */
    _Atomic uint64_t stops;     /* which signals are stop signals: bit N - 1 for signal N */
    _Atomic bool is_stopping;   /* the agent has accepted a stop signal */
    _Atomic bool is_paused;     /* the guardian obeys SIGTSTP, and the workers must stay stopped meanwhile */
    _Atomic int64_t until_ms;   /* when the agent will be gone; 0: not known */
    _Atomic int64_t turned_ms;  /* when the agent's loop ran last; 0: not yet */
    /* this process kills everybody, because the other one of the two is gone */
    _Atomic bool guardian_ends, agent_ends;
    _Atomic bool gone_told;    /* somebody has printed that the agent was ended because the guardian is gone */
    _Atomic int64_t lapsed_ms; /* the lease whose end was reported; guardian and deputy both set it */
};

/* Initialise; the memory must be zero. Stop signals are the usual ones until the agent has read its options. */
void board_init(struct board *b);

/* --- the agent's side */

/* Call before the signals are read; hand it to board_heard() when there is none left. */
uint32_t board_forwarded(const struct board *b);
void board_heard(struct board *b, uint32_t forwarded);

void board_turned(struct board *b, int64_t now_ms);

/* A stop signal was accepted: the agent will be gone by until_ms, or will name a later time. */
void board_stopping(struct board *b, int64_t until_ms);

/* --- the guardian's side */

struct patience {
    int signo;        /* the first stop signal, 0: none */
    uint32_t awaited; /* the oldest stop signal that may be unread, as a number of `forwarded` */
    uint32_t last;    /* the newest one */
    bool is_awaited;
    int64_t unheard_ms; /* since when unread, in running time */
    int64_t until_ms;   /* the board's value from which left_ms was computed */
    int64_t left_ms;    /* running time left */
    int sigints;        /* SIGINTs that count separately */
    int64_t sigint_ms;  /* the last of them */
    int64_t looked_ms;
    bool warned;
};

enum patience_verdict {
    PATIENCE_KEEP,
    PATIENCE_WARN,    /* once: it does not read its signals */
    PATIENCE_UNHEARD, /* the following give the agent up */
    PATIENCE_OVERDUE,
    PATIENCE_THIRD_SIGINT,
};

/* The guardian is about to forward signo. Called before the signal is sent, so that the agent never reports more
 * signals than were counted. typed: on the terminal. */
void patience_forward(struct patience *p, struct board *b, int signo, bool typed, int64_t now_ms);

/* *ret_wait_ms: when to look again; -1: not before the next signal or word of the agent. */
enum patience_verdict patience_look(struct patience *p, const struct board *b, int64_t now_ms, int *ret_wait_ms);

#endif
