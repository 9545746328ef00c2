/* Files other than log files, which the agent needs (chores.h). */
#include "launcher/output/process/chores.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/container_of.h"
#include "common/base/err.h"
#include "launcher/base/whole_file.h"
#include "launcher/output/process/file_thread.h"
#include "launcher/output/process/round_files.h"
#include "launcher/output/process/scratch.h"

#define SWEEP_MS 1000 /* ms: so not while workers are being started, nor in short runs */
#define LOOK_MS 1000

struct chores {
    struct chores_options o;
    struct file_thread *thread;
    struct file_job make, sweep, remove;
    uv_timer_t later; /* for the sweep */
    atomic_bool ends;
    int scratch_fd;      /* belongs to the thread; < 0: none, -errno after a failed try */
    uint64_t opens;      /* round that waits for the folder, 0: none */
    struct whole *begun; /* a file some of whose parts have not arrived; NULL: none */
    /* the preemption file */
    struct file_thread *looker;
    struct file_job look;
    bool is_there; /* owned by the thread until the job is done */
    uv_timer_t again;
};

/* --- the temporary folder */

static void make_scratch(struct file_job *job)
{
    struct chores *c = container_of(job, struct chores, make);
    file_thread_enter(c->thread, c->o.scratch);
    c->scratch_fd = scratch_make(c->o.scratch);
    atomic_store(&c->o.page->scratch, c->scratch_fd >= 0 ? OUTPUT_SCRATCH_MADE : OUTPUT_SCRATCH_NONE);
}

static void tell_opened(struct chores *c, uint64_t round)
{
    const struct output_head head = {.word = OUTPUT_OPENED, .round = round};
    c->o.tell(c->o.arg, &head, "", 0);
}

static void print_no_scratch(const struct chores *c)
{
    const char *slash = strrchr(c->o.scratch, '/');
    char text[4200];
    snprintf(text, sizeof text,
             "no folder for the workers' error records can be made in %.*s: %s (TMPDIR or --log-dir names another "
             "place)",
             slash ? (int)(slash - c->o.scratch) : 1, slash ? c->o.scratch : ".", strerror(-c->scratch_fd));
    c->o.print(c->o.arg, text);
}

static void on_made(struct file_job *job)
{
    struct chores *c = container_of(job, struct chores, make);
    if (c->scratch_fd < 0)
        print_no_scratch(c);
    if (c->opens)
        tell_opened(c, c->opens);
    c->opens = 0;
}

void chores_tell_opened(struct chores *c, uint64_t round)
{
    if (!c->o.scratch || atomic_load(&c->o.page->scratch))
        tell_opened(c, round);
    else
        c->opens = round;
}

static void sweep(struct file_job *job)
{
    struct chores *c = container_of(job, struct chores, sweep);
    file_thread_enter(c->thread, c->o.scratch);
    scratch_sweep(c->o.scratch, &c->ends);
}

static void on_later(uv_timer_t *t)
{
    struct chores *c = t->data;
    file_thread_add(c->thread, &c->sweep);
}

static void remove_scratch(struct file_job *job)
{
    struct chores *c = container_of(job, struct chores, remove);
    file_thread_enter(c->thread, c->o.scratch);
    if (c->scratch_fd >= 0)
        scratch_remove(c->o.scratch, c->scratch_fd);
}

void chores_end(struct chores *c)
{
    uv_timer_stop(&c->later);
    if (c->o.scratch && !atomic_exchange(&c->ends, true))
        file_thread_add(c->thread, &c->remove);
}

/* --- error records and cores */

static bool is_log(const struct chores *c, const char *path)
{
    const size_t root = strlen(c->o.logs->root);
    return root > 0 && strncmp(path, c->o.logs->root, root) == 0 && path[root] == '/';
}

struct reading {
    struct file_job job;
    struct chores *c;
    bool is_log; /* in the log folder, so the log folder's thread reads it */
    struct output_head head;
    const char *core; /* behind path */
    struct failure_record record;
    char path[]; /* "": none */
};

/* Open the folder of an error record. Users who may write above it could rename it, so it is reached through
 * descriptors. -1: there is none. */
static int open_record_folder(const struct reading *r, const char **name)
{
    const struct chores_options *o = &r->c->o;
    const int at = r->is_log ? *o->log_root_fd : r->c->scratch_fd;
    const size_t above = r->is_log ? log_layout_root_bytes(o->logs) : o->scratch ? strlen(o->scratch) + 1 : 0;
    return at < 0 || strlen(r->path) <= above ? -1 : whole_file_open_parent(at, r->path + above, name);
}

static void read_record(struct file_job *job)
{
    struct reading *r = container_of(job, struct reading, job);
    struct file_thread *thread = r->is_log ? r->c->o.log_files : r->c->thread;
    if (r->path[0]) {
        const char *name;
        file_thread_enter(thread, r->path);
        const int at = open_record_folder(r, &name);
        if (at >= 0 && failure_record_look(at, name, r->path, &r->record))
            r->head.n |= OUTPUT_HAS_RECORD;
        if (at >= 0)
            close(at);
    }
    if (r->core[0]) {
        file_thread_enter(thread, r->core);
        if (access(r->core, F_OK) == 0)
            r->head.n |= OUTPUT_HAS_CORE;
    }
}

static void on_record(struct file_job *job)
{
    struct reading *r = container_of(job, struct reading, job);
    r->c->o.tell(r->c->o.arg, &r->head, &r->record, sizeof r->record);
    free(r);
}

void chores_tell_record(struct chores *c, const struct output_message *m)
{
    const struct output_head head = {
        .word = OUTPUT_RECORD, .round = m->head.round, .number = m->head.number, .n = m->head.n * OUTPUT_ASKED};
    const size_t named = strlen(m->body) + 1;
    struct reading *r =
        m->n > 2 && named < m->n ? malloc(sizeof *r + m->n + 1) : NULL; /* two NULs: nothing to look for */
    if (!r) {
        c->o.tell(c->o.arg, &head, NULL, 0);
        return;
    }
    *r = (struct reading){.job = {.work = read_record, .done = on_record}, .c = c, .head = head};
    memcpy(r->path, m->body, m->n + 1);
    r->core = r->path + named;
    r->is_log = is_log(c, r->path);
    file_thread_add(r->is_log ? c->o.log_files : c->thread, &r->job);
}

/* --- files that are written whole */

struct whole {
    struct file_job job;
    struct chores *c;
    struct buf text;
    struct err e;
    char path[];
};

static void write_whole(struct file_job *job)
{
    struct whole *w = container_of(job, struct whole, job);
    file_thread_enter(w->c->thread, w->path);
    whole_file_write(w->path, w->text.data, w->text.len, &w->e);
}

static void write_log(struct file_job *job)
{
    struct whole *w = container_of(job, struct whole, job);
    const struct chores_options *o = &w->c->o;
    file_thread_enter(o->log_files, w->path);
    if (round_files_open_root(o->logs, o->log_root_fd, &w->e) == 0)
        whole_file_write_below(*o->log_root_fd, log_layout_root_bytes(o->logs), w->path, w->text.data, w->text.len,
                               &w->e);
}

static void on_whole(struct file_job *job)
{
    struct whole *w = container_of(job, struct whole, job);
    const struct output_head head = {.word = OUTPUT_WROTE};
    w->c->o.tell(w->c->o.arg, &head, w->e.text, strlen(w->e.text));
    buf_free(&w->text);
    free(w);
}

static struct whole *begin_whole(struct chores *c, const char *path, size_t named)
{
    struct whole *w = malloc(sizeof *w + named);
    if (!w)
        return NULL;
    *w = (struct whole){.job = {.done = on_whole}, .c = c};
    memcpy(w->path, path, named);
    return w;
}

bool chores_write_part(struct chores *c, const struct output_message *m)
{
    const size_t named = strlen(m->body) + 1;
    if (!c->begun)
        c->begun = begin_whole(c, m->body, named);
    if (!c->begun || buf_add(&c->begun->text, m->body + named, m->n - named) < 0)
        return false;
    if (m->head.n == 1) {
        const bool by_root = m->head.number && is_log(c, c->begun->path);
        c->begun->job.work = by_root ? write_log : write_whole;
        file_thread_add(by_root ? c->o.log_files : c->thread, &c->begun->job);
        c->begun = NULL;
    }
    return true;
}

/* --- the preemption file */

static void look(struct file_job *job)
{
    struct chores *c = container_of(job, struct chores, look);
    file_thread_enter(c->looker, c->o.notice_file);
    c->is_there = access(c->o.notice_file, F_OK) == 0;
}

static void on_again(uv_timer_t *t)
{
    struct chores *c = t->data;
    file_thread_add(c->looker, &c->look);
}

static void on_looked(struct file_job *job)
{
    struct chores *c = container_of(job, struct chores, look);
    if (c->is_there)
        c->o.noticed(c->o.arg);
    else
        uv_timer_start(&c->again, on_again, LOOK_MS, 0);
}

/* --- life */

int chores_create(struct chores **ret, uv_loop_t *loop, const struct chores_options *o, struct err *e)
{
    struct chores *c = calloc(1, sizeof *c);
    if (!c)
        return err_errno(e, ENOMEM, "output process");
    c->o = *o;
    c->scratch_fd = -1;
    c->make = (struct file_job){.work = make_scratch, .done = on_made};
    c->sweep = (struct file_job){.work = sweep};
    c->remove = (struct file_job){.work = remove_scratch};
    c->look = (struct file_job){.work = look, .done = on_looked};
    const struct file_thread_options thread = {.disk = "the disk of error records and the temporary folder",
                                               .meanwhile = "what workers leave there is not read, nor reports "
                                                            "written, until it does",
                                               .print = o->print,
                                               .moved = o->moved,
                                               .arg = o->arg},
                                     looker = {.disk = "the disk of the preemption file",
                                               .meanwhile = "a notice there is not seen until it does",
                                               .print = o->print,
                                               .moved = o->moved,
                                               .arg = o->arg};
    TRY(file_thread_create(&c->thread, loop, &thread, e));
    if (o->notice_file)
        TRY(file_thread_create(&c->looker, loop, &looker, e));
    *ret = c;
    uv_timer_init(loop, &c->later);
    uv_timer_init(loop, &c->again);
    c->later.data = c->again.data = c;
    if (o->notice_file)
        file_thread_add(c->looker, &c->look);
    if (!o->scratch)
        return 0;
    file_thread_add(c->thread, &c->make);
    uv_timer_start(&c->later, on_later, SWEEP_MS, 0);
    return 0;
}

struct file_thread *chores_thread(struct chores *c)
{
    return c->thread;
}
