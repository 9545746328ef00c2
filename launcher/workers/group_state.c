/* The table of a group's states: which event leads from which state to which (group_state.h). */
#include "launcher/workers/group_state.h"

const char *group_state_name(enum group_state s)
{
    static const char *const names[] = {GROUP_STATES(CHOICE_NAME)};
    return names[s];
}

const char *group_event_name(enum group_event e)
{
    static const char *const names[] = {GROUP_EVENTS(CHOICE_NAME)};
    return names[e];
}

bool group_state_clears(enum group_state s)
{
    return s == GROUP_DISMISSING || s == GROUP_CLEARING || s == GROUP_SORTING;
}

enum group_state group_next(enum group_state s, enum group_event e)
{
    switch (e) {
    case GROUP_START:
        return GROUP_RUNNING;
    case GROUP_OPEN:
        return s == GROUP_RUNNING ? GROUP_OPENING : s;
    case GROUP_OPENED:
        return s == GROUP_OPENING ? GROUP_RUNNING : s;
    case GROUP_HOLD:
        return s == GROUP_EMPTY || s == GROUP_OPENING || s == GROUP_RUNNING ? GROUP_HOLDING : s;
    case GROUP_STOP: /* held workers are stopped as well; states that kill everything go on */
        return s == GROUP_DISMISSING || s == GROUP_CLEARING ? s : GROUP_STOPPING;
    case GROUP_DISMISS:
        return GROUP_DISMISSING;
    case GROUP_CLEAR:
        return GROUP_CLEARING;
    case GROUP_SORT:
        return GROUP_SORTING;
    case GROUP_GONE:
        return GROUP_EMPTY;
    case GROUP_LEFT:
        return GROUP_KEPT;
    }
    return s;
}
