/* Answers the questions "stacks" and "logs" about this node's workers, with threads that may be slow (answers.h). */
#include "launcher/answer/answers.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/container_of.h"
#include "common/base/err.h"
#include "common/base/utf8.h"
#include "common/json/json_write.h"
#include "common/rdzv/wire/rdzv_wire.h"
#include "launcher/hang/gather.h"
#include "launcher/hang/stacks_json.h"
#include "launcher/observe/agent_view.h"
#include "launcher/output/log_layout.h"
#include "launcher/report/failure.h"

#define THREADS 4
#define THREADS_MAX 32 /* including threads of earlier questions that are blocked in the kernel */
#define TAIL_BYTES 4096
#define MS_MAX 60000

struct answers {
    struct answers_options o;
    uint64_t id; /* id of the question under way */
    bool logs;   /* the question is about logs */
    struct gather *gather;
    uv_timer_t late;
};

/* --- logs */

/* Read the last whole lines of a file, TAIL_BYTES at most. -errno. */
static int read_tail(const char *path, struct buf *out)
{
    struct stat st;
    char text[TAIL_BYTES + 1];
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return -errno;
    ssize_t n = fstat(fd, &st);
    if (n == 0)
        n = pread(fd, text, TAIL_BYTES, st.st_size > TAIL_BYTES ? st.st_size - TAIL_BYTES : 0);
    const int error = errno;
    close(fd);
    if (n < 0)
        return -error;
    text[n] = '\0';
    const char *line = n == TAIL_BYTES ? strchr(text, '\n') : NULL;
    return buf_addstr(out, line ? line + 1 : text);
}

/* Read a worker's log files (head, path) into text and top. */
static void look_at_log(struct gathered *v, const atomic_bool *cancel)
{
    struct buf errors = {0};
    (void)cancel;
    if (!v->path || !v->head) {
        snprintf(v->why, sizeof v->why, "no log files are written (--log-dir DIR)");
        return;
    }
    const int rc = read_tail(v->path, &v->text);
    if (read_tail(v->head, &errors) < 0 && rc < 0)
        snprintf(v->why, sizeof v->why, "%.200s: %s", v->path, strerror(-rc));
    v->top = errors.data;
}

static void add_text(struct json_write *w, const char *key, char *text)
{
    if (text)
        utf8_clean(text);
    json_text(w, key, text ? text : "");
}

static int logs_json(struct gather *g, struct buf *out)
{
    struct json_write w = {.out = out};
    char late[64];
    int left_out = 0;
    json_begin(&w, NULL, '{');
    json_begin(&w, "ranks", '[');
    for (int i = 0; i < gather_count(g); i++) {
        struct gathered *v = gather_at(g, i);
        if (out->len + 16 * TAIL_BYTES > RDZV_ANSWER_MAX) { /* a control byte takes six */
            left_out++;
            continue;
        }
        json_begin(&w, NULL, '{');
        json_int(&w, "rank", v->rank);
        if (v->path)
            json_text(&w, "file", v->path);
        if (v->done && !v->why[0]) {
            add_text(&w, "out", v->text.data);
            add_text(&w, "err", v->top);
        } else {
            if (!v->done)
                snprintf(late, sizeof late, "its log files were not read in time: a disk hangs");
            json_text(&w, "why", v->done ? v->why : late);
        }
        json_end(&w, '}');
    }
    json_end(&w, ']');
    json_int(&w, "left_out", left_out);
    json_end(&w, '}');
    return w.rc;
}

/* --- questions */

static void drop(struct answers *a)
{
    gather_drop(a->gather);
    a->gather = NULL;
    uv_timer_stop(&a->late);
}

/* Answer with what is there. */
static void answer(struct answers *a)
{
    struct buf text = {.max = RDZV_ANSWER_MAX + 16 * TAIL_BYTES};
    const int rc = a->logs ? logs_json(a->gather, &text) : stacks_json(a->gather, RDZV_ANSWER_MAX, &text);
    drop(a);
    if (rc == 0)
        a->o.answer(a->o.arg, a->id, text.data);
    buf_free(&text);
}

static void on_done(void *arg)
{
    answer(arg);
}

static void on_late(uv_timer_t *t)
{
    answer(container_of(t, struct answers, late));
}

/* Add the worker, if it is asked for. */
static int add_worker(const struct answers *a, const struct failure_worker *w, int rank, struct gathered *v)
{
    char path[LOG_PATH_MAX];
    if (w->pid <= 0 || (rank >= 0 && w->rank != rank) || (w->ended && !a->logs))
        return 0;
    v->rank = w->rank;
    v->pid = w->pid;
    if (a->logs && a->o.logs->root[0]) {
        v->path = strdup(log_layout_path(a->o.logs, w->local_rank, w->rank, LOG_FILE_OUT, path));
        v->head = strdup(log_layout_path(a->o.logs, w->local_rank, w->rank, LOG_FILE_ERR, path));
    }
    return 1;
}

void answers_hear(struct answers *a, const char *record)
{
    struct agent_view view;
    char what[16];
    const size_t n = strlen(record);
    const long long ms = rdzv_field_number(record, n, "ms", 0);
    const int rank = (int)rdzv_field_number(record, n, "rank", -1);
    if (rdzv_field_find(record, n, "ask", what, sizeof what) != 1 || ms <= 0 || ms > MS_MAX ||
        (strcmp(what, "stacks") != 0 && strcmp(what, "logs") != 0) || gather_threads() >= THREADS_MAX)
        return;
    drop(a);
    a->id = (uint64_t)rdzv_field_number(record, n, "id", 0);
    a->logs = strcmp(what, "logs") == 0;
    a->o.look(a->o.arg, &view);
    if (!(a->gather = gather_new(view.workers)))
        return;
    int found = 0;
    for (int i = 0; i < view.workers && view.in_round; i++)
        found += add_worker(a, &view.list[i], rank, gather_at(a->gather, found));
    gather_shorten(a->gather, found);
    const struct gather_options o = {
        .loop = a->o.loop, .threads = THREADS, .look = a->logs ? look_at_log : NULL, .done = on_done, .arg = a};
    if (gather_start(a->gather, &o, NULL) < 0)
        drop(a);
    else
        uv_timer_start(&a->late, on_late, (uint64_t)ms, 0);
}

/* --- life */

int answers_open(struct answers **ret, const struct answers_options *o, struct err *e)
{
    struct answers *a = calloc(1, sizeof *a);
    if (!a)
        return err_errno(e, ENOMEM, "answers");
    a->o = *o;
    uv_timer_init(o->loop, &a->late);
    *ret = a;
    return 0;
}

static void on_closed(uv_handle_t *h)
{
    free(container_of((uv_timer_t *)h, struct answers, late));
}

void answers_close(struct answers *a)
{
    if (!a)
        return;
    drop(a);
    gather_wait();
    uv_close((uv_handle_t *)&a->late, on_closed);
}
