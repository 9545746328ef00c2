/* From facts to findings. Pure. */
#ifndef CRUN_LAUNCHER_DOCTOR_JUDGE_H
#define CRUN_LAUNCHER_DOCTOR_JUDGE_H

#include <stdbool.h>
#include <stdint.h>

#include "launcher/tools/doctor/facts.h"
#include "launcher/tools/doctor/findings.h"
#include "launcher/tools/doctor/probe.h"

#define JUDGE_CLOCK_US 500000 /* clocks further apart than this are a finding */

/* One host as it stands in the list. */
struct judged {
    const char *host;
    const struct facts *facts;
    int workers;                 /* that it is to run */
    int64_t ahead_us, within_us; /* of its clock against ours; the true value is within this of it. -1: not known */
};

/* One host by itself. iface: that the job is to use, NULL: none was named. */
void judge_host(const struct judged *h, const char *iface, struct findings *out);

/* Hosts against the first one. */
void judge_hosts(const struct judged *v, int n, struct findings *out);

/* One connection, from one host to another; back: the one in the other direction, NULL: there was none. */
void judge_link(const char *from, const char *to, const struct probe *p, const struct probe *back,
                struct findings *out);

#endif
