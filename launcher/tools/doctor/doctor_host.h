/* The hosts that crun doctor examines: a crun doctor-agent (doctor_agent.h) runs on each, started as crun -H starts
 * its agents; on this machine without ssh. Requests go to all hosts at once, then it waits for all answers.
 * Blocking. */
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
    int end;                       /* pidfd of an agent whose output has ended; -1: none */
    struct buf partial;            /* not a whole line yet */
    char last[256];                /* the last line that it, or its ssh, printed on standard error */
    bool heard;                    /* its agent has answered at least once */
    bool gone;                     /* the agent ended, or did not answer in time */
    char why[384];                 /* gone: a part of a sentence */
    int64_t asked_us, answered_us; /* wall time here when the last request was sent, and when its answer came */
    bool waits;                    /* for an answer */
    cJSON *answer;                 /* of the last request; NULL: none */
};

/* ret: array of n hosts for the other calls; free it with doctor_hosts_close(). */
int doctor_hosts_open(struct doctor_host **ret, const struct hosts *hosts, const struct remote_shell *shell,
                      struct err *e);
void doctor_hosts_close(struct doctor_host *v, int n);

/* Send one request, and free it. Nothing is sent to a host that is gone. */
void doctor_host_ask(struct doctor_host *h, cJSON *request);
cJSON *doctor_request(const char *word);

/* Wait until each host that was asked has answered or is gone; those that have not by then count as gone. */
void doctor_hosts_wait(struct doctor_host *v, int n, int64_t timeout_ms);

#endif
