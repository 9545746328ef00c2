#include "launcher/output/process/notice_file.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/base/container_of.h"
#include "common/base/err.h"
#include "launcher/output/process/file_thread.h"

#define LOOK_MS 1000

struct notice_file {
    struct notice_file_options o;
    struct file_thread *thread;
    struct file_job look;
    bool is_there; /* the thread's until the job is done */
    uv_timer_t again;
};

static void look(struct file_job *job)
{
    struct notice_file *n = container_of(job, struct notice_file, look);
    file_thread_enter(n->thread, n->o.path);
    n->is_there = access(n->o.path, F_OK) == 0;
}

static void on_again(uv_timer_t *t)
{
    struct notice_file *n = container_of(t, struct notice_file, again);
    file_thread_add(n->thread, &n->look);
}

static void on_looked(struct file_job *job)
{
    struct notice_file *n = container_of(job, struct notice_file, look);
    if (n->is_there)
        n->o.found(n->o.arg);
    else
        uv_timer_start(&n->again, on_again, LOOK_MS, 0);
}

static void ignore(void *arg)
{
    (void)arg;
}

int notice_file_watch(uv_loop_t *loop, const struct notice_file_options *o, struct err *e)
{
    struct notice_file *n = calloc(1, sizeof *n);
    if (!n)
        return err_errno(e, ENOMEM, "output process");
    n->o = *o;
    n->look = (struct file_job){.work = look, .done = on_looked};
    const struct file_thread_options thread = {.disk = "the disk of the preemption file",
                                               .meanwhile = "a notice there is not seen until it does",
                                               .print = o->print,
                                               .moved = ignore,
                                               .arg = o->arg};
    const int rc = file_thread_create(&n->thread, loop, &thread, e);
    if (rc < 0) {
        free(n);
        return rc;
    }
    uv_timer_init(loop, &n->again);
    file_thread_add(n->thread, &n->look);
    return 0;
}
