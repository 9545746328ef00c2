/* Makes the lines of the event log, which tells programs what happens to a job on this node: one JSON object per
 * line. The output process appends them to a file (output/process/event_file.h). A NULL log ignores every call. */
#ifndef CRUN_LAUNCHER_EVENT_LOG_H
#define CRUN_LAUNCHER_EVENT_LOG_H

#include <stddef.h>

#include "common/base/buf.h"
#include "common/json/json_write.h"

struct err;

struct event_log_options { /* strings are borrowed */
    const char *run_id, *node;
    /* called for each line, newline included; NULL: a line that could not be made */
    void (*write)(void *arg, const char *line, size_t n);
    void *arg;
};

struct event_log;

int event_log_create(struct event_log **ret, const struct event_log_options *o, struct err *e);

/* Begin {"time":..., "mono_ns":..., "event":kind, "run_id":..., "node":...; the caller adds members until
 * event_log_end(). NULL: no log. */
struct json_write *event_log_begin(struct event_log *l, const char *kind);
void event_log_end(struct event_log *l);

void event_log_destroy(struct event_log *l); /* NULL allowed */

#endif
