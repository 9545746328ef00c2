/* What an agent prints last, if its job was stopped. Pure. */
#ifndef CRUN_LAUNCHER_FAREWELL_H
#define CRUN_LAUNCHER_FAREWELL_H

#include <stdbool.h>
#include <stddef.h>

struct farewell {
    int code;  /* of crun */
    int signo; /* the stop signal that came, 0: none */
    /* what announced that this node will be taken away: "SIGUSR1, a preemption notice"; NULL: nothing did */
    const char *notice;
    bool ended;       /* the job was over for this node before its workers had ended */
    int end_code;     /* exit code that the job's end gave this node */
    bool end_unknown; /* the workers exited with 0, and this node never heard how the job ended */
    bool idle;        /* the job succeeded, and this node never started a worker */
    bool unbegun;     /* this node never had a seat in a round */
    const char *by;   /* with `unbegun`: what stopped the job; NULL or "": not known */
    bool rough;       /* some worker of the newest round ended with neither 0 nor 75 */
    bool bad;         /* a worker that was stopped ended neither with 0 or 75 nor by SIGTERM */
};

enum farewell_kind {
    FAREWELL_NONE,    /* print nothing: the job ended by itself, or failed, which the failure report covers */
    FAREWELL_WHOLE,   /* a sentence */
    FAREWELL_STOPPED, /* a sentence, followed by the workers that did not stop in good order */
};

#define FAREWELL_MAX 360

enum farewell_kind farewell(const struct farewell *f, char out[FAREWELL_MAX]);

#endif
