/* Parses the targets of `crun chaos`, and finds the processes that they name (chaos_target.h). */
#include "launcher/tools/chaos/chaos_target.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/args/args.h"
#include "common/base/err.h"
#include "common/base/file.h"
#include "launcher/guard/procs.h"

#define STALE_S 2 /* seconds by which clocks may differ: a file's time has the kernel's tick as precision */

/* --- operands */

static int read_source(struct chaos_source *s, const char *text, struct err *e)
{
    if (!*text)
        return err_set(e, ERR_USAGE, "expected a pid, or a file that holds one");
    if (text[strspn(text, "0123456789")] != '\0') {
        s->file = text;
        return 0;
    }
    int64_t pid;
    TRY(parse_i64(text, "pid", 1, INT32_MAX, &pid, e));
    s->pid = (pid_t)pid;
    s->started = chaos_started(s->pid);
    return 0;
}

static int read_process(struct chaos_target *t, const char *word, const char *value, struct err *e)
{
    for (const char *c = word; *c; c++)
        if (!islower((unsigned char)*c))
            return err_set(e, ERR_USAGE,
                           "'%s': expected link, folder, clock or, for another process, a word of small letters", word);
    if (!*word || strlen(word) >= CHAOS_WORD_MAX || chaos_role_of(word) != CHAOS_OTHER)
        return err_set(e, ERR_USAGE, "'%s=': that word stands for a process of crun: expected another one", word);
    if (t->n == CHAOS_PROCESSES_MAX)
        return err_set(e, ERR_USAGE, "expected at most %d other processes of a node", CHAOS_PROCESSES_MAX);
    t->processes[t->n].word = word;
    TRY(read_source(&t->processes[t->n].source, value, e));
    t->n++;
    return 0;
}

static int read_pair(struct chaos_target *t, char *item, struct err *e)
{
    char *value = strchr(item, '=');
    if (!value)
        return err_set(e, ERR_USAGE, "'%s': expected link=, folder=, clock= or WORD=", item);
    *value++ = '\0';
    const char **to = strcmp(item, "link") == 0     ? &t->link
                      : strcmp(item, "folder") == 0 ? &t->folder
                      : strcmp(item, "clock") == 0  ? &t->clock
                                                    : NULL;
    if (!to)
        return read_process(t, item, value, e);
    if (!*value)
        return err_set(e, ERR_USAGE, "'%s=' needs a value", item);
    if (*to)
        return err_set(e, ERR_USAGE, "'%s=' stands there twice: expected it once", item);
    char *colon = to == &t->link ? strrchr(value, ':') : NULL;
    if (colon) {
        *colon = '\0';
        t->netns = value;
    }
    *to = colon ? colon + 1 : value;
    return 0;
}

int chaos_target_parse(struct chaos_target *ret, char *text, struct err *e)
{
    char *rest = NULL;
    *ret = (struct chaos_target){0};
    char *item = strtok_r(text, ",", &rest);
    if (!item)
        return err_set(e, ERR_USAGE, "an empty TARGET: expected a pid of crun, or a file that holds one");
    if (!strchr(item, '=')) {
        TRY(read_source(&ret->crun, item, e));
        item = strtok_r(NULL, ",", &rest);
    }
    for (; item; item = strtok_r(NULL, ",", &rest))
        TRY(read_pair(ret, item, e));
    return 0;
}

/* --- who is there */

static bool is_given(const struct chaos_source *s)
{
    return s->file || s->pid > 0;
}

bool chaos_target_allows(const struct chaos_target *t, const struct chaos_act *a)
{
    switch (a->deed) {
    case CHAOS_CUT:
        return t->link;
    case CHAOS_FILL:
    case CHAOS_CORRUPT:
        return t->folder;
    case CHAOS_CLOCK:
        return t->clock;
    default:
        break;
    }
    if (a->role != CHAOS_OTHER)
        return is_given(&t->crun);
    for (int i = 0; i < t->n; i++)
        if (strcmp(t->processes[i].word, a->word) == 0)
            return true;
    return false;
}

uint64_t chaos_started(pid_t pid)
{
    struct proc p;
    return proc_read(pid, &p) ? (uint64_t)p.started + 1 : 0;
}

/* When a process began, by the present wall clock. */
static double began_at(uint64_t started)
{
    struct timespec boot, wall;
    clock_gettime(CLOCK_BOOTTIME, &boot);
    clock_gettime(CLOCK_REALTIME, &wall);
    const double up = (double)boot.tv_sec + (double)boot.tv_nsec / 1e9;
    const double now = (double)wall.tv_sec + (double)wall.tv_nsec / 1e9;
    return now - up + (double)started / (double)sysconf(_SC_CLK_TCK);
}

bool chaos_source_read(const struct chaos_source *s, pid_t *ret, uint64_t *ret_started)
{
    struct stat st;
    const pid_t pid = s->file ? file_read_int(0, "%s", s->file) : s->pid;
    const uint64_t started = pid > 0 ? chaos_started(pid) : 0;
    if (started == 0 || (!s->file && started != s->started))
        return false;
    if (s->file && (stat(s->file, &st) < 0 || began_at(started) > (double)st.st_mtime + STALE_S))
        return false;
    *ret = pid;
    *ret_started = started;
    return true;
}

enum presence { NOT_GIVEN, GONE, MAY_COME };

static enum presence look(const struct chaos_source *s)
{
    pid_t pid;
    uint64_t started;
    return !is_given(s) ? NOT_GIVEN : s->file || chaos_source_read(s, &pid, &started) ? MAY_COME : GONE;
}

bool chaos_targets_are_gone(const struct chaos_targets *t)
{
    enum presence most = NOT_GIVEN, p;
    for (int i = 0; i < t->n; i++) {
        most = (p = look(&t->v[i].crun)) > most ? p : most;
        for (int k = 0; k < t->v[i].n; k++)
            most = (p = look(&t->v[i].processes[k].source)) > most ? p : most;
    }
    return most == GONE;
}
