/* Figures of a server in Prometheus' text format, version 0.0.4. */
#ifndef CRUN_RENDEZVOUSD_METRICS_H
#define CRUN_RENDEZVOUSD_METRICS_H

struct buf;
struct gate;
struct jobs;
struct server;

/* gate and jobs may be NULL: their figures are left out. -ENOMEM. */
int metrics_write(struct buf *out, const struct server *s, const struct gate *g, const struct jobs *j);

#endif
