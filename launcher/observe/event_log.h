/* The log of what happens to a job on this node, for programs: one JSON object a line. Here lines are made; the output
 * process adds them to a file (output/process/event_file.h).
 * A NULL log takes everything in silence. */
#ifndef CRUN_LAUNCHER_EVENT_LOG_H
#define CRUN_LAUNCHER_EVENT_LOG_H

#include <stddef.h>

#include "common/base/buf.h"
#include "common/json/json_write.h"

struct err;

struct event_log_options { /* strings are borrowed */
    const char *run_id, *node;
    /* Each line, newline included; NULL: one that could not be made. */
    void (*write)(void *arg, const char *line, size_t n);
    void *arg;
};

struct event_log;

int event_log_create(struct event_log **ret, const struct event_log_options *o, struct err *e);

/* {"time":..., "mono_ns":..., "event":kind, "run_id":..., "node":..., and then what the caller adds until
 * event_log_end(). NULL: no log. */
struct json_write *event_log_begin(struct event_log *l, const char *kind);
void event_log_end(struct event_log *l);

void event_log_destroy(struct event_log *l); /* NULL allowed */

#endif
