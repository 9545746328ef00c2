/* The agent's lines for its event log, until the output process has written them (output/process/event_file.h).
 *
 * Lines are numbered. Those that the page does not confirm as written are kept, up to EVENT_LINES_MAX bytes, and
 * sent again to a new output process. Beyond that a line is dropped, and the gap in the numbers shows it. */
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
