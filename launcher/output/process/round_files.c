/* Makes the folders of a round, and opens its files, on the files' thread (round_files.h). */
#include "launcher/output/process/round_files.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/container_of.h"
#include "common/base/err.h"
#include "launcher/output/output_wire.h"
#include "launcher/output/process/queued_file.h"

struct opening {
    struct file_job job;
    struct round_files what;
    int n, rc;
    struct err e;
    struct queued_file *files[];
};

static void remove_records(const struct round_files *w)
{
    char path[LOG_PATH_MAX];
    for (int i = 0; i < w->workers && atomic_load(&w->page->launched) < w->id; i++) {
        log_layout_path(&w->layout, i, w->rank_base + i, LOG_FILE_ERROR, path);
        unlinkat(*w->root_fd, path + log_layout_root_bytes(&w->layout), 0);
    }
}

int round_files_open_root(const struct log_layout *layout, int *root, struct err *e)
{
    struct stat st;
    if (*root >= 0 && fstat(*root, &st) == 0 && st.st_nlink > 0)
        return 0;
    const int fd = log_layout_open_root(layout, e);
    if (fd < 0)
        return fd;
    if (*root < 0) {
        *root = fd;
        return 0;
    }
    dup3(fd, *root, O_CLOEXEC);
    close(fd);
    return 0;
}

static int make_root(struct opening *o)
{
    TRY(log_layout_make_root(&o->what.layout, &o->e));
    return round_files_open_root(&o->what.layout, o->what.root_fd, &o->e);
}

static int open_round(struct opening *o)
{
    TRY(round_files_open_root(&o->what.layout, o->what.root_fd, &o->e));
    TRY(log_layout_make_round(&o->what.layout, *o->what.root_fd, o->what.workers, &o->e));
    remove_records(&o->what);
    for (int i = 0; i < o->n; i++)
        TRY(queued_file_open_now(o->files[i], *o->what.root_fd, &o->e));
    return 0;
}

static void open_files(struct file_job *job)
{
    struct opening *o = container_of(job, struct opening, job);
    file_thread_enter(o->what.thread, o->what.id ? o->what.layout.round : o->what.layout.root);
    o->rc = o->what.id ? open_round(o) : make_root(o);
}

static void on_opened(struct file_job *job)
{
    struct opening *o = container_of(job, struct opening, job);
    o->what.opened(o->what.arg, o->what.id, o->rc, o->e.text);
    free(o);
}

void round_files_open(const struct round_files *what, struct queued_file *const *files, int n)
{
    struct opening *o = calloc(1, sizeof *o + (size_t)n * sizeof *files);
    if (!o) {
        what->opened(what->arg, what->id, ERR_OUTPUT, "no memory to open the log files");
        return;
    }
    o->job = (struct file_job){.work = open_files, .done = on_opened};
    o->what = *what;
    o->n = n;
    if (n > 0)
        memcpy(o->files, files, (size_t)n * sizeof *files);
    file_thread_add(what->thread, &o->job);
}
