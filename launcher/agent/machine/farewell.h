/* What an agent says at its end, of a job that was stopped. Pure. */
#ifndef CRUN_LAUNCHER_FAREWELL_H
#define CRUN_LAUNCHER_FAREWELL_H

#include <stdbool.h>
#include <stddef.h>

struct farewell {
    int code;           /* of crun */
    int signo;          /* the stop signal that came, 0: none */
    const char *notice; /* that this node will be taken away: "SIGUSR1, a preemption notice"; NULL: none came */
    bool ended;         /* for this node the job was over before its workers were */
    int end_code;       /* and was to end with this */
    bool end_unknown;   /* the workers had finished, and this node never heard how the job ended */
    bool idle;          /* the job succeeded, and this node never had a worker */
    bool unbegun;       /* this node never had a place in a round */
    const char *by;     /* with `unbegun`: what stopped the job; NULL or "": not known */
    bool bad;           /* some worker, being stopped, ended with neither 0 nor 75 nor by SIGTERM */
};

enum farewell_kind {
    FAREWELL_NONE,    /* nothing: it ran to its end, or failed, which the failure report covers */
    FAREWELL_WHOLE,   /* a sentence */
    FAREWELL_STOPPED, /* a sentence that the workers that did not stop in good order come after */
};

#define FAREWELL_MAX 360

enum farewell_kind farewell(const struct farewell *f, char out[FAREWELL_MAX]);

#endif
