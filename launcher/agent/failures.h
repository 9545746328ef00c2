/* What report/failure_report.h needs from the agent, and the state of the job in its terms. */
#ifndef CRUN_LAUNCHER_FAILURES_H
#define CRUN_LAUNCHER_FAILURES_H

struct err;
struct run;

int failures_open(struct run *r, struct err *e); /* sets r->failures */
void failures_send_early(struct run *r);         /* failure_report_send_early() */
void failures_finish(struct run *r);             /* failure_report_finish() */

#endif
