#include "launcher/failure.h"

#include <string.h>

#include "common/err.h"

static bool failed(const struct failure_worker *w)
{
    return w->ended && !w->told_to_stop && ending_code(w->ending) != 0;
}

int failure_first(const struct failure_worker *w, int n)
{
    int first = -1;
    for (int i = 0; i < n; i++)
        if (failed(&w[i]) && (first < 0 || w[i].order < w[first].order))
            first = i;
    return first;
}

static int render_others(const struct failure_worker *w, int n, int first, struct buf *out)
{
    char text[64];
    for (int i = 0; i < n; i++) {
        if (i == first || !failed(&w[i]))
            continue;
        TRY(buf_printf(out, "  then      rank %d (pid %d) %s, %.1f ms later\n", w[i].rank, (int)w[i].pid,
                       ending_text(w[i].ending, text, sizeof text), (double)(w[i].ended_ns - w[first].ended_ns) / 1e6));
    }
    return 0;
}

/* Its further lines are indented: nothing that a worker wrote looks like a line of ours. */
static int render_message(const struct failure_job *j, struct buf *out)
{
    static const char first[] = "  message   ", further[] = "\n            ";
    TRY(buf_addstr(out, first));
    for (const char *line = j->message;; line++) {
        const size_t n = strcspn(line, "\n"), start = out->len;
        TRY(buf_add(out, line, n));
        lines_clean(out->data + start, n);
        line += n;
        if (!*line || !line[1])
            break;
        TRY(buf_addstr(out, further));
    }
    return buf_printf(out, " (%s)\n", j->message_from);
}

int failure_render(const struct failure_job *j, const struct failure_worker *w, int n, struct buf *out)
{
    char text[64];
    int first = failure_first(w, n);
    if (first < 0)
        return 0;
    const struct failure_worker *c = &w[first];
    TRY(buf_printf(out, "crun: %s failed: rank %d %s\n", j->program, c->rank,
                   ending_text(c->ending, text, sizeof text)));
    TRY(buf_printf(out, "  job       %s, round %llu, %d of %d restarts used\n", j->run_id, (unsigned long long)j->round,
                   j->restarts, j->max_restarts));
    TRY(buf_printf(out, "  culprit   rank %d (local rank %d), pid %d on %s\n", c->rank, c->local_rank, (int)c->pid,
                   j->host));
    if (j->message)
        TRY(render_message(j, out));
    TRY(render_others(w, n, first, out));
    if (!j->tail || j->tail->n == 0)
        return buf_addstr(out, "  stderr    (nothing)\n");
    TRY(buf_addstr(out, "  stderr    last lines:\n"));
    return lines_tail_render(j->tail, FAILURE_TAIL_LINES, "    | ", out);
}
