/* Chooses the last sentence that crun prints about a job that was stopped (farewell.h). */
#include "launcher/agent/machine/farewell.h"

#include <stdio.h>

#include "common/job/exitcode.h"
#include "launcher/base/ending.h"

/* The sentence for exit code 75: whoever started crun should start it again. */
static enum farewell_kind to_go_on(const struct farewell *f, char *out)
{
    char name[32];
    if (f->signo && f->end_unknown)
        snprintf(out, FAREWELL_MAX,
                 "stopped by %s; this node's workers had finished; whether the job has, is unknown (exit code %d)",
                 signal_text(f->signo, name, sizeof name), EXIT_REQUEUE);
    else if (f->signo && f->rough)
        snprintf(out, FAREWELL_MAX, "stopped after %s; start it again to go on (exit code %d)",
                 signal_text(f->signo, name, sizeof name), EXIT_REQUEUE);
    else if (f->signo)
        snprintf(out, FAREWELL_MAX, "stopped in good order after %s; start it again to go on (exit code %d)",
                 signal_text(f->signo, name, sizeof name), EXIT_REQUEUE);
    else if (f->notice)
        snprintf(out, FAREWELL_MAX, "stopped after %s; start it again to go on (exit code %d)", f->notice,
                 EXIT_REQUEUE);
    else if (f->unbegun && f->by && f->by[0])
        snprintf(out, FAREWELL_MAX,
                 "the job was stopped by %.230s before its first round here; start it again (exit code %d)", f->by,
                 EXIT_REQUEUE);
    else if (f->unbegun) /* somebody else's drain */
        snprintf(out, FAREWELL_MAX,
                 "the job was stopped before its first round here: a node it needs was stopped, or an operator drained "
                 "it; start it again (exit code %d)",
                 EXIT_REQUEUE);
    else if (f->bad)
        snprintf(out, FAREWELL_MAX, "stopped before the end; start it again to go on (exit code %d)", EXIT_REQUEUE);
    else if (f->rough)
        snprintf(out, FAREWELL_MAX, "the workers were stopped before the end; start it again to go on (exit code %d)",
                 EXIT_REQUEUE);
    else
        snprintf(out, FAREWELL_MAX,
                 "the workers stopped in good order before the end; start it again to go on (exit code %d)",
                 EXIT_REQUEUE);
    return !f->signo && !f->notice && f->bad ? FAREWELL_STOPPED : FAREWELL_WHOLE;
}

enum farewell_kind farewell(const struct farewell *f, char out[FAREWELL_MAX])
{
    char name[32];
    out[0] = 0;
    if (f->idle) {
        snprintf(out, FAREWELL_MAX,
                 "the job is over; this node waited as a spare to the end and ran no worker (exit code %d, "
                 "--spare-exit-code)",
                 f->code);
        return FAREWELL_WHOLE;
    }
    if (f->code == EXIT_REQUEUE)
        return to_go_on(f, out);
    if (f->signo && f->code != EXIT_OK)
        snprintf(out, FAREWELL_MAX, "stopped by %s", signal_text(f->signo, name, sizeof name));
    else if (f->notice && f->ended && f->code != EXIT_OK)
        snprintf(out, FAREWELL_MAX, "stopped by %s", f->notice);
    else if (f->ended && f->end_code == EXIT_REQUEUE)
        snprintf(out, FAREWELL_MAX, "stopped because a worker asked for it (exit code %d)", EXIT_REQUEUE);
    return out[0] ? FAREWELL_STOPPED : FAREWELL_NONE;
}
