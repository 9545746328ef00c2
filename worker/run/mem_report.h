/* --mem-report: what was planned beside what is there, of every rank, reported by the rank that leads. */
#ifndef CRUN_WORKER_MEM_REPORT_H
#define CRUN_WORKER_MEM_REPORT_H

#include <stdint.h>

struct err;
struct journal;
struct session;

/* What has been sent so far to others by training; -1: the communicator does not know. */
int64_t mem_report_sent(const struct session *s);

/* A table, and an event "mem-report" among the metrics. All ranks call it; blocks. */
int mem_report_tell(struct session *s, struct journal *j, const char *when, int64_t step, struct err *e);

#endif
