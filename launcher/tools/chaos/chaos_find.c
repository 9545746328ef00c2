/* Finds the processes of a crun in /proc (chaos_find.h). A guardian's children are distinguished by their names in
 * the kernel. */
#include "launcher/tools/chaos/chaos_find.h"

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/array.h"
#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/base/file.h"
#include "launcher/guard/procs.h"
#include "launcher/outside/crew.h"
#include "launcher/tools/chaos/chaos_draw.h"
#include "launcher/tools/chaos/chaos_plan.h"
#include "launcher/tools/chaos/chaos_target.h"

#define PATH_BYTES 4096
#define LOOK_AGAIN_MS 10

static const char *const beside[] = {
    [CHAOS_DEPUTY] = "job-deputy", [CHAOS_OUTPUT] = "job-output", [CHAOS_GAUGES] = "job-gauges"};

/* --- a node */

/* For a process whose program we may not read: does it have the same name as this process? */
static bool is_named_like_us(pid_t pid, struct proc *ret)
{
    struct proc self;
    return !proc_read(pid, ret) || !proc_read(getpid(), &self) || strcmp(ret->name, self.name) == 0;
}

/* Does the process run this very program? *ret: yes or no; false: it is dead. -EPERM: it runs another one. */
static int check_crun(pid_t pid, const char *what, bool *ret, struct err *e)
{
    char path[64], program[PATH_BYTES];
    struct stat theirs, ours;
    *ret = false;
    snprintf(path, sizeof path, "/proc/%d/exe", (int)pid);
    if (stat(path, &theirs) < 0) {
        const int why = errno;
        struct proc p;
        if (why == ENOENT || why == ESRCH)
            return 0;
        return is_named_like_us(pid, &p)
                   ? err_errno(e, why, "%s (pid %d)", what, (int)pid)
                   : err_set(e, -EPERM, "%s: process %d (%s) is no crun: expected this crun", what, (int)pid, p.name);
    }
    *ret = stat("/proc/self/exe", &ours) == 0 && ours.st_dev == theirs.st_dev && ours.st_ino == theirs.st_ino;
    if (*ret)
        return 0;
    const ssize_t n = readlink(path, program, sizeof program - 1);
    program[n < 0 ? 0 : n] = '\0';
    return err_set(e, -EPERM, "%s: process %d runs %s: expected this crun, which alone is touched", what, (int)pid,
                   program);
}

static int add(struct chaos_found *f, pid_t pid, struct err *e)
{
    const uint64_t started = chaos_started(pid);
    if (started == 0)
        return 0;
    TRY(ARRAY_GROW(f->v, f->cap, (size_t)f->n + 1, "processes", e));
    f->v[f->n++] = (struct chaos_process){pid, started};
    return 0;
}

struct choice {
    pid_t pid;
    int rank;
};

static int by_rank(const void *a, const void *b)
{
    const struct choice *x = a, *y = b;
    return x->rank != y->rank ? (x->rank > y->rank) - (x->rank < y->rank) : x->pid - y->pid;
}

static int find_worker(const struct procs *below, pid_t agent, const struct chaos_part *part, struct chaos_found *f,
                       struct err *e)
{
    struct choice *v = malloc((below->n + 1) * sizeof *v);
    int n = 0, rank, rc = 0;
    if (!v)
        return err_errno(e, ENOMEM, "workers");
    for (size_t i = 0; i < below->n; i++) {
        const struct proc *p = &below->v[i];
        if (p->parent != agent || proc_is_dead(p) || !crew_rank(p->pid, &rank))
            continue;
        const bool fits = part->act->role == CHAOS_SPARE ? rank < 0 : rank >= 0;
        if (fits && (part->act->rank < 0 || part->act->rank == rank))
            v[n++] = (struct choice){p->pid, rank};
    }
    if (n > 0) {
        qsort(v, (size_t)n, sizeof *v, by_rank);
        const struct choice *chosen = &v[part->pick % (uint64_t)n];
        rc = add(f, chosen->pid, e);
        f->rank = chosen->rank;
    }
    free(v);
    return rc;
}

static int find_beside(const struct procs *below, pid_t guardian, const char *name, struct chaos_found *f,
                       struct err *e)
{
    int rc = 0;
    for (size_t i = 0; i < below->n && f->n == 0 && rc == 0; i++)
        if (below->v[i].parent == guardian && strcmp(below->v[i].name, name) == 0 && !proc_is_dead(&below->v[i]))
            rc = add(f, below->v[i].pid, e);
    return rc;
}

static int find_all(const struct procs *below, struct chaos_found *f, struct err *e)
{
    int rc = 0;
    for (size_t i = 0; i < below->n && rc == 0; i++)
        if (!proc_is_dead(&below->v[i]))
            rc = add(f, below->v[i].pid, e);
    return rc;
}

static int find_on(const struct chaos_target *t, const struct chaos_part *part, struct chaos_found *f, struct err *e)
{
    pid_t guardian;
    uint64_t started;
    struct procs below;
    bool is_crun;
    if (!chaos_source_read(&t->crun, &guardian, &started))
        return 0;
    TRY(check_crun(guardian, t->crun.file ? t->crun.file : "TARGET", &is_crun, e));
    if (!is_crun)
        return 0;
    procs_below(&below, guardian);
    const pid_t agent = crew_agent(&below, guardian);
    const enum chaos_role role = part->act->role;
    int rc = 0;
    if (role == CHAOS_GUARDIAN || role == CHAOS_NODE)
        rc = add(f, guardian, e);
    else if (role == CHAOS_AGENT && agent > 0)
        rc = add(f, agent, e);
    else if ((role == CHAOS_WORKER || role == CHAOS_SPARE) && agent > 0)
        rc = find_worker(&below, agent, part, f, e);
    else if (role < CHAOS_WORKER && beside[role])
        rc = find_beside(&below, guardian, beside[role], f, e);
    if (role == CHAOS_NODE && rc == 0)
        rc = find_all(&below, f, e);
    procs_free(&below);
    return rc;
}

static int find_other(const struct chaos_target *t, const char *word, struct chaos_found *f, struct err *e)
{
    pid_t pid;
    uint64_t started;
    for (int i = 0; i < t->n; i++)
        if (strcmp(t->processes[i].word, word) == 0 && chaos_source_read(&t->processes[i].source, &pid, &started))
            TRY(add(f, pid, e));
    return 0;
}

int chaos_find(const struct chaos_targets *t, const struct chaos_part *part, struct chaos_found *ret, struct err *e)
{
    const int first = part->node < 0 ? 0 : part->node, last = part->node < 0 ? t->n - 1 : part->node;
    *ret = (struct chaos_found){.node = part->node, .rank = -1, .cap = ret->cap, .v = ret->v};
    for (int i = first; i <= last && ret->n == 0; i++) {
        ret->node = i;
        TRY(part->act->role == CHAOS_OTHER ? find_other(&t->v[i], part->act->word, ret, e)
                                           : find_on(&t->v[i], part, ret, e));
    }
    return 0;
}

/* --- before anything is done */

/* Find the process that a source (pid or file) names. *ret: its pid; 0: none now, but one may come. */
static int check_source(const struct chaos_source *s, const char *what, pid_t *ret, struct err *e)
{
    char line[32];
    uint64_t started;
    *ret = 0;
    if (!s->file && s->pid == 0)
        return 0;
    if (chaos_source_read(s, ret, &started))
        return 0;
    if (!s->file)
        return err_set(e, ERR_USAGE, "%s: there is no process %d", what, (int)s->pid);
    const int rc = file_read_line(line, sizeof line, "%s", s->file);
    if (rc < 0)
        return err_errno(e, -rc, "%s: expected a pid, or a file that holds one: %s", what, s->file), ERR_USAGE;
    if (file_read_int(0, "%s", s->file) <= 0)
        return err_set(e, ERR_USAGE, "%s: the file %s holds no pid: expected that of a process", what, s->file);
    return 0;
}

static int check_target(const struct chaos_target *t, const char *what, struct err *e)
{
    const int64_t until_ms = clock_ms() + CHAOS_EXEC_MS;
    bool is_crun = false;
    pid_t pid, other;
    char text[64];
    int rc = check_source(&t->crun, what, &pid, e);
    while (rc == 0 && pid > 0 && (rc = check_crun(pid, what, &is_crun, e)) == -EPERM && clock_ms() < until_ms) {
        poll(NULL, 0, LOOK_AGAIN_MS);
        rc = check_source(&t->crun, what, &pid, e);
    }
    if (rc == -EPERM)
        rc = ERR_USAGE;
    if (rc == 0 && pid > 0 && !is_crun && !t->crun.file)
        rc = err_set(e, ERR_USAGE, "%s: the process %d has ended", what, (int)pid);
    for (int i = 0; i < t->n && rc == 0; i++) {
        snprintf(text, sizeof text, "%s, %s", what, t->processes[i].word);
        rc = check_source(&t->processes[i].source, text, &other, e);
    }
    return rc;
}

int chaos_find_check(const struct chaos_targets *t, struct err *e)
{
    char what[32];
    for (int i = 0; i < t->n; i++) {
        snprintf(what, sizeof what, "TARGET %d", i);
        TRY(check_target(&t->v[i], what, e));
    }
    return 0;
}
