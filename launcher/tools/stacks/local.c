/* Looks at a crun on this machine by its process id: its job, its workers' stacks (local.h). */
#include "launcher/tools/stacks/local.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <uv.h>

#include "common/base/buf.h"
#include "common/base/container_of.h"
#include "common/base/err.h"
#include "common/net/loop.h"
#include "launcher/config/config.h"
#include "launcher/guard/procs.h"
#include "launcher/hang/gather.h"
#include "launcher/hang/stacks_json.h"
#include "launcher/outside/ask_options.h"
#include "launcher/outside/crew.h"
#include "launcher/tools/stacks/ask_nodes.h"

#define THREADS 4
#define WORDS_MAX 4096
#define ANSWER_BYTES (64u << 20)

bool local_is_crun(pid_t pid)
{
    char path[64];
    struct stat theirs, ours;
    snprintf(path, sizeof path, "/proc/%d/exe", (int)pid);
    return stat(path, &theirs) == 0 && stat("/proc/self/exe", &ours) == 0 && ours.st_dev == theirs.st_dev &&
           ours.st_ino == theirs.st_ino;
}

/* --- its job */

/* Read the words of a /proc file, each ended by a 0; the last pointer is NULL. They are never freed, because values
 * read from them point there. */
static char **read_words(pid_t pid, const char *name)
{
    const struct buf text = proc_file(pid, name);
    char **words = text.data ? calloc(WORDS_MAX + 1, sizeof *words) : NULL; /* NULL: it may not be read */
    size_t n = 0;
    for (size_t at = 0; words && at < text.len && n < WORDS_MAX; at += strlen(text.data + at) + 1)
        words[n++] = text.data + at;
    return words;
}

int local_find_job(pid_t pid, struct ask_options *o, const char **ret_run)
{
    static struct config c;
    static struct arg_result r;
    static char **argv, **env;
    struct err e;
    int argc = 0;
    argv = read_words(pid, "cmdline");
    env = read_words(pid, "environ");
    while (argv && argv[argc])
        argc++;
    if (argc == 0 || !env || clearenv() != 0)
        return 0;
    for (char **p = env; *p; p++)
        putenv(*p);
    if (config_read(&c, &r, argc, argv, &e) < 0 || config_starts_agents(&c) || c.home.kind == HOME_LOCAL)
        return 0;
    o->endpoint = c.home.kind == HOME_LISTED ? c.rdzv_endpoint : c.home.endpoint;
    o->token_file = o->token_file ? o->token_file : c.token_file;
    o->ca = o->ca ? o->ca : c.rdzv_ca;
    o->tls = o->tls || c.rdzv_tls;
    *ret_run = c.run_id;
    return o->endpoint && o->endpoint[0];
}

/* --- its workers */

struct look {
    struct gather *gather;
    uv_timer_t late;
    bool over;
};

static void on_done(void *arg)
{
    ((struct look *)arg)->over = true;
}

static void on_late(uv_timer_t *t)
{
    container_of(t, struct look, late)->over = true;
}

static int add_workers(pid_t pid, struct gather **ret, struct err *e)
{
    struct procs below;
    int rank, n = 0;
    if (!procs_below(&below, pid))
        return err_set(e, -ENOENT, "there is no /proc");
    const pid_t child = crew_agent(&below, pid), agent = child ? child : pid;
    struct gather *g = gather_new((int)below.n + 1);
    for (size_t i = 0; g && i < below.n; i++) {
        const struct proc *p = &below.v[i];
        if (p->parent != agent || proc_is_dead(p) || !crew_rank(p->pid, &rank) || rank < 0)
            continue;
        gather_at(g, n)->rank = rank;
        gather_at(g, n++)->pid = p->pid;
    }
    procs_free(&below);
    if (!g)
        return err_errno(e, ENOMEM, "call stacks");
    gather_shorten(g, n);
    *ret = g;
    return n;
}

int local_stacks(pid_t pid, int timeout_ms, const struct ask_nodes *q, struct err *e)
{
    struct look l = {0};
    struct buf text;
    uv_loop_t loop;
    const int n = add_workers(pid, &l.gather, e);
    TRY(n);
    int rc = n > 0 ? loop_open(&loop, e)
                   : err_set(e, ERR_REFUSED, "process %d has no workers here, or they may not be looked at", (int)pid);
    if (rc < 0) {
        gather_drop(l.gather);
        return rc;
    }
    const struct gather_options o = {.loop = &loop, .threads = THREADS, .done = on_done, .arg = &l};
    buf_init(&text, ANSWER_BYTES);
    uv_timer_init(&loop, &l.late);
    uv_timer_start(&l.late, on_late, (uint64_t)timeout_ms, 0);
    rc = gather_start(l.gather, &o, e);
    while (rc == 0 && !l.over)
        uv_run(&loop, UV_RUN_ONCE);
    if (rc == 0 && (rc = stacks_json(l.gather, ANSWER_BYTES / 2, &text)) < 0)
        err_set(e, rc, "no memory for call stacks");
    gather_drop(l.gather);
    uv_close((uv_handle_t *)&l.late, NULL);
    uv_run(&loop, UV_RUN_DEFAULT);
    uv_loop_close(&loop);
    gather_wait();
    rc = rc < 0 ? rc : ask_nodes_read("this machine", text.data, q, e);
    buf_free(&text);
    return rc;
}
