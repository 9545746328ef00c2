#include "launcher/guard/stuck.h"

#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>

#include "common/base/clock.h"
#include "launcher/base/ending.h"
#include "launcher/guard/cgroup.h"
#include "launcher/guard/console.h"
#include "launcher/guard/guardian.h"
#include "launcher/guard/neighbours.h"
#include "launcher/guard/procs.h"
#include "launcher/guard/tree.h"

char *stuck_text(pid_t agent, char out[STUCK_TEXT_MAX])
{
    char where[PROC_WAIT_MAX];
    snprintf(out, STUCK_TEXT_MAX, "agent (pid %d, state %c%s)", (int)agent, proc_state(agent),
             proc_wait_text(agent, where));
    return out;
}

static void report_stop(pid_t pid, const char *who, const char *meanwhile)
{
    siginfo_t info = {0};
    char name[32];
    if (waitid(P_PID, (id_t)pid, &info, WSTOPPED | WNOHANG | __WALL) == 0 && info.si_pid == pid)
        console_try("crun: its %s (pid %d) was stopped by %s: until SIGCONT %s\n", who, (int)pid,
                    signal_text(info.si_status, name, sizeof name), meanwhile);
}

void stuck_report_stops(pid_t agent, const struct neighbours *beside)
{
    static const char unread[] = "nobody reads what the workers write, and they may wait";
    static const char *const meanwhile[NEIGHBOURS] = {
        [NEIGHBOUR_OUTPUT] = unread,
        [NEIGHBOUR_STDOUT] = unread,
        [NEIGHBOUR_STDERR] = unread,
        [NEIGHBOUR_DEPUTY] = "nobody acts in place of an agent that does not",
    };
    char who[32];
    report_stop(agent, "agent", "nobody watches the workers");
    for (int i = 0; i < NEIGHBOURS; i++) {
        const struct neighbour *n = &beside->v[i];
        snprintf(who, sizeof who, "%s process", n->name);
        if (meanwhile[i] && n->beside.pid > 0)
            report_stop(n->beside.pid, who, meanwhile[i]);
    }
}

static void explain(struct stuck *s, pid_t agent, enum patience_verdict why)
{
    char text[STUCK_TEXT_MAX], name[32];
    stuck_text(agent, text);
    signal_text(s->patience.signo, name, sizeof name);
    if (why == PATIENCE_UNHEARD)
        snprintf(s->given_up, sizeof s->given_up, "its %s did not take %s within %d s", text, name, PATIENCE_MS / 1000);
    else if (why == PATIENCE_OVERDUE)
        snprintf(s->given_up, sizeof s->given_up, "its %s was to end after %s, and did not for %d s more", text, name,
                 PATIENCE_MS / 1000);
    else
        snprintf(s->given_up, sizeof s->given_up, "a third SIGINT, while its %s was not at its end", text);
}

int stuck_wait_ms(struct stuck *s, pid_t agent, const struct guardian_link *l)
{
    char text[STUCK_TEXT_MAX];
    int wait_ms;
    const enum patience_verdict v = patience_look(&s->patience, l->board, clock_ms(), &wait_ms);
    if (v == PATIENCE_WARN)
        console_try(
            "crun: its %s does not take signals: it is ended %d s after the first one, or by the third SIGINT\n",
            stuck_text(agent, text), PATIENCE_MS / 1000);
    if (v == PATIENCE_KEEP || v == PATIENCE_WARN)
        return wait_ms;
    explain(s, agent, v); /* as it is now */
    tree_kill_below(agent);
    kill(agent, SIGKILL); /* last: one that waits in the kernel outlives it */
    cgroup_kill_at(l->cgroup_dir);
    return 0;
}
