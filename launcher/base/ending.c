/* The end of a process as an exit code, and as text (ending.h). */
#include "launcher/base/ending.h"

#include <signal.h>
#include <stdio.h>

/* Names of Linux' signals; glibc has a function for them only since 2.32. */
#define NAMED(signo) [signo] = #signo
static const char *const signal_names[] = {
    NAMED(SIGHUP),  NAMED(SIGINT),    NAMED(SIGQUIT), NAMED(SIGILL),  NAMED(SIGTRAP),   NAMED(SIGABRT), NAMED(SIGBUS),
    NAMED(SIGFPE),  NAMED(SIGKILL),   NAMED(SIGUSR1), NAMED(SIGSEGV), NAMED(SIGUSR2),   NAMED(SIGPIPE), NAMED(SIGALRM),
    NAMED(SIGTERM), NAMED(SIGSTKFLT), NAMED(SIGCHLD), NAMED(SIGCONT), NAMED(SIGSTOP),   NAMED(SIGTSTP), NAMED(SIGTTIN),
    NAMED(SIGTTOU), NAMED(SIGURG),    NAMED(SIGXCPU), NAMED(SIGXFSZ), NAMED(SIGVTALRM), NAMED(SIGPROF), NAMED(SIGWINCH),
    NAMED(SIGPOLL), NAMED(SIGPWR),    NAMED(SIGSYS)};
#undef NAMED

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
    const int n = sizeof signal_names / sizeof *signal_names;
    const char *name = signo > 0 && signo < n ? signal_names[signo] : NULL;
    if (name)
        snprintf(out, cap, "%s", name);
    else
        snprintf(out, cap, "signal %d", signo);
    return out;
}

char *ending_text(struct ending e, char *out, size_t cap)
{
    char name[32];
    if (e.signaled && e.oom)
        snprintf(out, cap, "killed by the kernel: out of memory");
    else if (e.signaled)
        snprintf(out, cap, "killed by %s%s", signal_text(e.value, name, sizeof name), e.core ? " (core dumped)" : "");
    else
        snprintf(out, cap, "exited with code %d", e.value);
    return out;
}
