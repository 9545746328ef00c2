/* What report/failure_report.h needs from the agent, and the state of the job in its terms. */
#ifndef CRUN_LAUNCHER_FAILURES_H
#define CRUN_LAUNCHER_FAILURES_H

struct err;
struct run;

int failures_open(struct run *r, struct err *e); /* sets r->failures */
void failures_send_early(struct run *r);         /* failure_report_send_early() */
void failures_finish(struct run *r);             /* failure_report_finish() */

/* "; eth0 went down": a link of this machine that was up when the job began, and is down; "": none is. Returns out. */
#define FAILURES_LINK_MAX 160
const char *failures_down_link(const struct run *r, char out[FAILURES_LINK_MAX]);

#endif
