#include "launcher/base/ending.h"

#include <stdio.h>
#include <string.h>

struct ending ending_of(const siginfo_t *info)
{
    struct ending e = {.value = info->si_status};
    e.signaled = info->si_code == CLD_KILLED || info->si_code == CLD_DUMPED;
    e.core = info->si_code == CLD_DUMPED;
    return e;
}

int ending_code(struct ending e)
{
    return e.signaled ? 128 + e.value : e.value;
}

const char *signal_text(int signo, char *out, size_t cap)
{
    const char *name = sigabbrev_np(signo);
    if (name)
        snprintf(out, cap, "SIG%s", name);
    else
        snprintf(out, cap, "signal %d", signo);
    return out;
}

char *ending_text(struct ending e, char *out, size_t cap)
{
    char name[32];
    if (e.signaled)
        snprintf(out, cap, "killed by %s%s", signal_text(e.value, name, sizeof name), e.core ? " (core dumped)" : "");
    else
        snprintf(out, cap, "exited with code %d", e.value);
    return out;
}
