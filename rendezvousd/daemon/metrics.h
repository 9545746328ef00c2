/* The figures of a server in Prometheus' text format, version 0.0.4. */
#ifndef CRUN_RENDEZVOUSD_METRICS_H
#define CRUN_RENDEZVOUSD_METRICS_H

struct buf;
struct gate;
struct history;
struct history_reader;
struct jobs;
struct server;

#define METRICS_JOBS_MAX 200 /* with series of their own: the newest */

/* Series of single jobs are limited to those that the reader may see. -ENOMEM. */
int metrics_write(struct buf *out, const struct server *s, const struct gate *g, const struct jobs *j,
                  const struct history *h, const struct history_reader *who);

#endif
