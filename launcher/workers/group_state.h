/* Where the workers of a node stand, from round to round (group.h). Pure. */
#ifndef CRUN_LAUNCHER_GROUP_STATE_H
#define CRUN_LAUNCHER_GROUP_STATE_H

#include <stdbool.h>

#include "common/base/choice.h"

#define GROUP_STATES(X)                                                                                                \
    X(GROUP_EMPTY, "empty")           /* nobody was started yet, or nobody is left */                                  \
    X(GROUP_OPENING, "opening")       /* workers wait for their log files to be opened */                              \
    X(GROUP_RUNNING, "running")       /* they are being made, or run */                                                \
    X(GROUP_HOLDING, "holding")       /* they let go of the round, or are being stopped */                             \
    X(GROUP_STOPPING, "stopping")     /* they have a reason and a signal */                                            \
    X(GROUP_DISMISSING, "dismissing") /* all have ended; what they left has SIGTERM, and GROUP_DISMISS_MS */           \
    X(GROUP_CLEARING, "clearing")     /* SIGKILL to all, until nobody is left */                                       \
    X(GROUP_SORTING, "sorting")       /* the same, but for those that are held */                                      \
    X(GROUP_KEPT, "kept")             /* nobody is left but those that are held; pipes are of their round */

#define GROUP_EVENTS(X)                                                                                                \
    X(GROUP_START, "start")   /* of a round */                                                                         \
    X(GROUP_OPEN, "open")     /* its log files have to be opened first */                                              \
    X(GROUP_OPENED, "opened") /* they are, or are not waited for */                                                    \
    X(GROUP_HOLD, "hold")                                                                                              \
    X(GROUP_STOP, "stop")                                                                                              \
    X(GROUP_DISMISS, "dismiss")                                                                                        \
    X(GROUP_CLEAR, "clear") /* all */                                                                                  \
    X(GROUP_SORT, "sort")   /* all but those that are held */                                                          \
    X(GROUP_GONE, "gone")   /* nobody is left, or waited for */                                                        \
    X(GROUP_LEFT, "left")   /* the same, but for those that are held */

enum group_state { GROUP_STATES(CHOICE_ID) };
enum group_event { GROUP_EVENTS(CHOICE_ID) };

const char *group_state_name(enum group_state s);
const char *group_event_name(enum group_event e);

/* An event that means nothing in a state changes nothing. */
enum group_state group_next(enum group_state s, enum group_event e);

/* Everybody, or all but some, are being ended: DISMISSING, CLEARING, SORTING. */
bool group_state_clears(enum group_state s);

#endif
