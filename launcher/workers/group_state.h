/* The state of a node's workers, from round to round (group.h). Pure. */
#ifndef CRUN_LAUNCHER_GROUP_STATE_H
#define CRUN_LAUNCHER_GROUP_STATE_H

#include <stdbool.h>

#include "common/base/choice.h"

#define GROUP_STATES(X)                                                                                                \
    X(GROUP_EMPTY, "empty")           /* no process was started yet, or none is left */                                \
    X(GROUP_OPENING, "opening")       /* workers wait until their log files are open */                                \
    X(GROUP_RUNNING, "running")       /* they are being made, or run */                                                \
    X(GROUP_HOLDING, "holding")       /* workers let go of the round, or are being stopped */                          \
    X(GROUP_STOPPING, "stopping")     /* they have a reason and a signal */                                            \
    X(GROUP_DISMISSING, "dismissing") /* all ended; what they left has got SIGTERM, and has GROUP_DISMISS_MS */        \
    X(GROUP_CLEARING, "clearing")     /* SIGKILL to all, until nobody is left */                                       \
    X(GROUP_SORTING, "sorting")       /* the same, except for held workers */                                          \
    X(GROUP_KEPT, "kept")             /* only held workers are left; their pipes are open */

#define GROUP_EVENTS(X)                                                                                                \
    X(GROUP_START, "start")   /* of a round */                                                                         \
    X(GROUP_OPEN, "open")     /* log files must be opened first */                                                     \
    X(GROUP_OPENED, "opened") /* they are, or are not waited for */                                                    \
    X(GROUP_HOLD, "hold")                                                                                              \
    X(GROUP_STOP, "stop")                                                                                              \
    X(GROUP_DISMISS, "dismiss")                                                                                        \
    X(GROUP_CLEAR, "clear") /* all */                                                                                  \
    X(GROUP_SORT, "sort")   /* all but those that are held */                                                          \
    X(GROUP_GONE, "gone")   /* nobody is left, or waited for */                                                        \
    X(GROUP_LEFT, "left")   /* the same, except for held workers */

enum group_state { GROUP_STATES(CHOICE_ID) };
enum group_event { GROUP_EVENTS(CHOICE_ID) };

const char *group_state_name(enum group_state s);
const char *group_event_name(enum group_event e);

/* An event without a meaning in a state changes nothing. */
enum group_state group_next(enum group_state s, enum group_event e);

/* Are processes being killed, all or all but held workers? DISMISSING, CLEARING, SORTING. */
bool group_state_clears(enum group_state s);

#endif
