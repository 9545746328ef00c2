/* When the guardian gives up its agent, and what it prints about processes that do not react (stuck.h). */
#include "launcher/guard/stuck.h"

#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>

#include "common/base/clock.h"
#include "common/base/file.h"
#include "launcher/base/ending.h"
#include "launcher/guard/cgroup.h"
#include "launcher/guard/guardian.h"
#include "launcher/guard/neighbours.h"
#include "launcher/guard/procs.h"
#include "launcher/guard/tree.h"
#include "launcher/stdio/console.h"

char *stuck_text(pid_t agent, const struct guardian_link *l, char out[STUCK_TEXT_MAX])
{
    char where[PROC_WAIT_MAX], at[FILE_AT_MAX];
    snprintf(at, sizeof at, "%s", l->at->path);
    for (char *p = at; *p; p++)
        if ((unsigned char)*p < ' ' || *p == 127)
            *p = '?';
    snprintf(out, STUCK_TEXT_MAX, "agent (pid %d, state %c%s%s%s%s)", (int)agent, proc_state(agent),
             proc_wait_text(agent, where), at[0] ? ", at '" : "", at, at[0] ? "'" : "");
    return out;
}

#define FILE_MS 1000

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
    static const char *const meanwhile[NEIGHBOURS] = {
        [NEIGHBOUR_OUTPUT] = "nobody reads what the workers write, and they may wait",
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

static void explain(struct stuck *s, pid_t agent, const struct guardian_link *l, enum patience_verdict why)
{
    char text[STUCK_TEXT_MAX], name[32];
    stuck_text(agent, l, text);
    signal_text(s->patience.signo, name, sizeof name);
    if (why == PATIENCE_UNHEARD)
        snprintf(s->given_up, sizeof s->given_up, "its %s did not take %s within %d s", text, name, PATIENCE_MS / 1000);
    else if (why == PATIENCE_OVERDUE)
        snprintf(s->given_up, sizeof s->given_up, "its %s was to end after %s, and did not for %d s more", text, name,
                 PATIENCE_MS / 1000);
    else
        snprintf(s->given_up, sizeof s->given_up, "a third SIGINT, while its %s was not at its end", text);
}

/* Print once if one of the user's files blocks the agent's start. Returns ms until that is due, -1: no more. */
static int look_at_file(struct stuck *s, pid_t agent, const struct guardian_link *l, int64_t now_ms)
{
    char text[STUCK_TEXT_MAX];
    if (s->has_looked)
        return -1;
    s->begun_ms = s->begun_ms ? s->begun_ms : now_ms;
    const int64_t at_ms = l->at->since_ms, since = at_ms > s->begun_ms ? at_ms : s->begun_ms;
    if (now_ms - since < FILE_MS)
        return (int)(FILE_MS - (now_ms - since));
    s->has_looked = true;
    if (at_ms)
        console_try("crun: its %s has waited for that file for %d ms: the disk or file server does not answer\n",
                    stuck_text(agent, l, text), FILE_MS);
    return -1;
}

int stuck_wait_ms(struct stuck *s, pid_t agent, const struct guardian_link *l)
{
    char text[STUCK_TEXT_MAX];
    int wait_ms;
    const int64_t now_ms = clock_ms();
    const int file_ms = look_at_file(s, agent, l, now_ms);
    const enum patience_verdict v = patience_look(&s->patience, l->board, now_ms, &wait_ms);
    if (v == PATIENCE_WARN)
        console_try(
            "crun: its %s does not take signals: it is ended %d s after the first one, or by the third SIGINT\n",
            stuck_text(agent, l, text), PATIENCE_MS / 1000);
    if (v == PATIENCE_KEEP || v == PATIENCE_WARN)
        return wait_ms < 0 || (file_ms >= 0 && file_ms < wait_ms) ? file_ms : wait_ms;
    explain(s, agent, l, v); /* as it is now */
    tree_kill_below(agent);
    kill(agent, SIGKILL); /* last: the agent may be blocked in the kernel, and then outlives its SIGKILL for a while */
    cgroup_kill_at(l->cgroup_dir);
    return 0;
}
