/* The log of what happens to a job on this node, for programs: one JSON object a line, added to the end of a file.
 *
 *   - a line is one write(2) to a file opened with O_APPEND: lines of several agents on one machine do not mix; over
 *     NFS they may, so a shared folder wants a file for each node;
 *   - a line that an earlier crun left unfinished (killed in mid-write, a full disk) is ended first: what follows can
 *     be read;
 *   - a full disk is told once, and the job goes on; the next line that goes in says how many are missing ("lost").
 * A NULL log takes everything in silence. */
#ifndef CRUN_LAUNCHER_EVENT_LOG_H
#define CRUN_LAUNCHER_EVENT_LOG_H

#include <stdbool.h>
#include <stddef.h>

#include "common/base/buf.h"
#include "common/json/json_write.h"

struct err;

struct event_log_options { /* strings are borrowed */
    const char *path;      /* NULL: lines go to say() only */
    const char *run_id, *node;
    void (*say)(void *arg, const char *line);  /* each line, newline included; NULL: none */
    void (*fail)(void *arg, const char *text); /* once, where the file takes no more */
    void *arg;
};

struct event_log;

/* ERR_OUTPUT. */
int event_log_open(struct event_log **ret, const struct event_log_options *o, struct err *e);

/* {"time":..., "mono_ns":..., "event":kind, "run_id":..., "node":..., and then what the caller adds until
 * event_log_end(). NULL: no log. */
struct json_write *event_log_begin(struct event_log *l, const char *kind);
void event_log_end(struct event_log *l);

void event_log_close(struct event_log *l); /* NULL allowed */

#endif
