/* A job of crun's that is watched, and whose rank 1 is killed on the way. */
#ifndef CRUN_WORKER_DEMO_JOB_H
#define CRUN_WORKER_DEMO_JOB_H

#include <stdint.h>

struct err;

struct job_options {
    char *const *argv;    /* of crun; its lines go to standard output and to run/output */
    const char *run;      /* the folder that has metrics.jsonl (trainer's) and events.jsonl (crun's) */
    int64_t kill_at;      /* steps after which rank 1 gets SIGKILL, once */
    int64_t steps_in_all; /* to say so */
};

struct job_result {
    int code;          /* what crun ended with; 128 + a signal */
    char restart[256]; /* "restart 1/3 (…) …" as it was printed; "": never */
    char goes_on[128]; /* "goes on from step 105 …", or, where steps are too slow for that, "resumed from step 100 …" */
    double accuracy; /* percent; negative: none was printed */
};

/* Blocks until crun has ended. SIGINT, SIGTERM and SIGHUP go to crun, which then stops in good order. */
int job_run(const struct job_options *o, struct job_result *ret, struct err *e);

#endif
