/* What the blocking list commands share with the others. */
#ifndef CRUN_RENDEZVOUSD_COMMAND_LIST_H
#define CRUN_RENDEZVOUSD_COMMAND_LIST_H

#include <stdbool.h>

struct conn;
struct request_arg;

bool want_end(struct conn *c, const struct request_arg *a, bool *front); /* LEFT or RIGHT; false after an error */

enum moved { MOVED_NOTHING, MOVED, MOVED_ERROR }; /* nothing is answered; the element is; an error is */

/* Take an element off one list and put it on another (or the same). */
enum moved list_move(struct conn *c, const struct request_arg *from, const struct request_arg *to, bool from_front,
                     bool to_front);

#endif
