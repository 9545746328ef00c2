/* The hosts that crun doctor looks at: a crun doctor-agent (doctor_agent.h) runs on each, started as crun -H starts its
 * agents, this machine's without ssh. Requests go to all at once; the answers are waited for together. Blocking. */
#ifndef CRUN_LAUNCHER_DOCTOR_HOST_H
#define CRUN_LAUNCHER_DOCTOR_HOST_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "common/base/buf.h"
#include "launcher/remote/remote_shell.h"

struct err;

struct doctor_host {
    const struct host *host; /* borrowed */
    const char *address;     /* that others reach it by; borrowed */
    pid_t pid;
    int in, out, err;              /* of its agent; -1: closed */
    int end;                       /* pidfd of one whose output is at its end; -1 */
    struct buf partial;            /* not a whole line yet */
    char last[256];                /* the last line that it, or its ssh, printed on standard error */
    bool heard;                    /* its agent has answered at least once */
    bool gone;                     /* it ended, or did not answer in time */
    char why[384];                 /* gone: a part of a sentence */
    int64_t asked_us, answered_us; /* wall time here of the last request and of its answer */
    bool waits;                    /* for an answer */
    cJSON *answer;                 /* of the last request; NULL: none */
};

/* ret: n hosts of an array that is to be passed to the other calls, and freed with doctor_hosts_close(). */
int doctor_hosts_open(struct doctor_host **ret, const struct hosts *hosts, const struct remote_shell *shell,
                      struct err *e);
void doctor_hosts_close(struct doctor_host *v, int n);

/* One request; takes it. Nothing is sent to one that is gone. */
void doctor_host_ask(struct doctor_host *h, cJSON *request);
cJSON *doctor_request(const char *word);

/* Until each that was asked has answered or is gone; who has not by then is gone. */
void doctor_hosts_wait(struct doctor_host *v, int n, int64_t timeout_ms);

#endif
