/* The agent's lines for its event log, until the output process has written them (output/process/event_file.h).
 *
 * They are numbered. What the page does not confirm as written is kept, EVENT_LINES_MAX bytes of it, and resent to a
 * process that takes over; beyond that a line is left out, and the gap in the numbers shows it. */
#ifndef CRUN_LAUNCHER_EVENT_LINES_H
#define CRUN_LAUNCHER_EVENT_LINES_H

#include <stddef.h>
#include <stdint.h>

#define EVENT_LINES_MAX (1u << 20)

struct event_lines;
struct output_page;

/* NULL: no memory. */
struct event_lines *event_lines_create(struct output_page *page,
                                       void (*send)(void *arg, uint64_t number, const char *line, size_t n), void *arg);
void event_lines_add(struct event_lines *l, const char *line, size_t n); /* NULL: it could not be made */
void event_lines_send_again(struct event_lines *l);
void event_lines_destroy(struct event_lines *l); /* NULL allowed */

#endif
