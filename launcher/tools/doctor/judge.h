/* From facts to findings. Pure. */
#ifndef CRUN_LAUNCHER_DOCTOR_JUDGE_H
#define CRUN_LAUNCHER_DOCTOR_JUDGE_H

#include <stdbool.h>
#include <stdint.h>

#include "launcher/tools/doctor/facts.h"
#include "launcher/tools/doctor/findings.h"
#include "launcher/tools/doctor/probe.h"

#define JUDGE_CLOCK_US 500000 /* us: a larger difference between clocks is a finding */

/* One host of the list. */
struct judged {
    const char *host;
    const struct facts *facts;
    int workers;                 /* that it is to run */
    int64_t ahead_us, within_us; /* how far its clock is ahead of ours, and the error bound of that; -1: not known */
};

/* Judge one host by itself. iface: interface that the job should use, NULL: none was named. */
void judge_host(const struct judged *h, const char *iface, struct findings *out);

/* Hosts against the first one. */
void judge_hosts(const struct judged *v, int n, struct findings *out);

/* Judge one connection, from one host to another; back: the opposite direction, NULL: not tried. */
void judge_link(const char *from, const char *to, const struct probe *p, const struct probe *back,
                struct findings *out);

#endif
