/* Failures as the text that people read (failure.h). */
#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/base/err.h"
#include "common/json/json.h"
#include "launcher/report/failure.h"

/* Number of workers that a report names after the culprit; the rest is only counted. */
#define OTHERS_MAX 32
#define FAULTS_MAX 3 /* in the first line */

/* Indent further lines: a text of another node must not control the terminal, or look like a line of crun's. */
static int add_shown(struct buf *out, const char *text)
{
    for (const char *line = text;; line++) {
        const size_t n = strcspn(line, "\n"), start = out->len;
        TRY(buf_add(out, line, n));
        if (n > 0)
            lines_clean(out->data + start, n);
        line += n;
        if (!*line || !line[1])
            return 0;
        TRY(buf_addstr(out, "\n            "));
    }
}

static int field(struct buf *out, const char *label, const char *text)
{
    if (!text[0])
        return 0;
    TRY(buf_printf(out, "  %-9s ", label));
    TRY(add_shown(out, text));
    return buf_addstr(out, "\n");
}

static int render_message(const cJSON *o, struct buf *out)
{
    const char *text = json_str_or(o, "message", "");
    if (!text[0])
        return 0;
    TRY(buf_addstr(out, "  message   "));
    TRY(add_shown(out, text));
    TRY(buf_addstr(out, " ("));
    TRY(add_shown(out, json_str_or(o, "message_from", "")));
    return buf_addstr(out, ")\n");
}

static int render_progress(const cJSON *o, struct buf *out)
{
    const double step = json_f64_or(o, "step", -1);
    if (!json_str_or(o, "phase", "")[0])
        return 0;
    TRY(step >= 0 ? buf_printf(out, "  progress  step %.0f, phase ", step)
                  : buf_addstr(out, "  progress  no step yet, phase "));
    TRY(add_shown(out, json_str_or(o, "phase", "")));
    return buf_addstr(out, "\n");
}

static int render_culprit(const cJSON *o, struct buf *out)
{
    TRY(buf_printf(out, "  culprit   rank %d (local rank %d), pid %d on ", json_int_or(o, "rank", -1),
                   json_int_or(o, "local_rank", -1), json_int_or(o, "pid", -1)));
    TRY(add_shown(out, json_str_or(o, "host", "")));
    TRY(buf_addstr(out, "\n"));
    TRY(render_progress(o, out));
    TRY(field(out, "gpu", json_str_or(o, "gpu", "")));
    TRY(field(out, "core", json_str_or(o, "core", "")));
    TRY(field(out, "memory", json_str_or(o, "memory", "")));
    TRY(field(out, "xid", json_str_or(o, "xid", "")));
    TRY(field(out, "link", json_str_or(o, "link", "")));
    return render_message(o, out);
}

static int render_other(const cJSON *o, const cJSON *culprit, struct buf *out)
{
    const double ms = culprit ? 1000 * (json_f64_or(o, "time", -1) - json_f64_or(culprit, "time", -1)) : NAN;
    const bool here = culprit && strcmp(json_str_or(o, "node", ""), json_str_or(culprit, "node", "")) == 0;
    TRY(buf_printf(out, "  then      rank %d (pid %d%s", json_int_or(o, "rank", -1), json_int_or(o, "pid", -1),
                   here ? "" : " on "));
    if (!here)
        TRY(add_shown(out, json_str_or(o, "host", "")));
    TRY(buf_addstr(out, ") "));
    TRY(add_shown(out, json_str_or(o, "ending", "")));
    if (isfinite(ms))
        TRY(buf_printf(out, ", %.1f ms %s", fabs(ms), ms < 0 ? "earlier by its node's clock" : "later"));
    return buf_addstr(out, "\n");
}

static int render_stderr(const cJSON *o, struct buf *out)
{
    const cJSON *lines = cJSON_GetObjectItemCaseSensitive(o, "stderr"), *line;
    if (json_str_or(o, "stderr_late", "")[0]) {
        TRY(buf_addstr(out, "  stderr    (its last lines could not be had: "));
        TRY(add_shown(out, json_str_or(o, "stderr_late", "")));
        return buf_addstr(out, ")\n");
    }
    if (cJSON_GetArraySize(lines) == 0)
        return buf_addstr(out, "  stderr    (nothing)\n");
    TRY(buf_addstr(out, "  stderr    last lines:\n"));
    cJSON_ArrayForEach(line, lines)
    {
        TRY(buf_addstr(out, "    | "));
        TRY(add_shown(out, cJSON_IsString(line) ? line->valuestring : ""));
        TRY(buf_addstr(out, "\n"));
    }
    return 0;
}

int failure_render_faults(const cJSON *faults, const char *but, struct buf *out)
{
    char host[256];
    int shown = 0;
    for (const cJSON *o = faults ? faults->child : NULL; o; o = o->next) {
        if ((but && strcmp(json_str_or(o, "node", ""), but) == 0) || shown++ >= FAULTS_MAX)
            continue;
        const char *node = json_str_or(o, "node", ""); /* "node2+4711-5ddd": its host is enough for people */
        snprintf(host, sizeof host, "%.*s", (int)strcspn(node, "+"), node);
        TRY(buf_addstr(out, "; on "));
        TRY(add_shown(out, host));
        TRY(buf_addstr(out, ": "));
        TRY(add_shown(out, json_str_or(o, "fault", "")));
    }
    return shown > FAULTS_MAX ? buf_printf(out, "; and on %d more", shown - FAULTS_MAX) : 0;
}

static int render_head(const struct failure_job *j, const cJSON *culprit, struct buf *out)
{
    TRY(buf_printf(out, "crun: %s failed: ", j->program));
    if (culprit && !(j->cause[0] && strncmp(json_str_or(culprit, "ending", ""), "hung ", 5) == 0)) {
        TRY(buf_printf(out, "rank %d ", json_int_or(culprit, "rank", -1)));
        TRY(add_shown(out, json_str_or(culprit, "ending", "")));
        TRY(failure_render_faults(j->faults, json_str_or(culprit, "node", ""), out));
    } else { /* for a hang it also says whether others wait in the same place */
        TRY(add_shown(out, j->cause));
        TRY(failure_render_faults(j->faults, NULL, out));
    }
    TRY(buf_printf(out, "\n  job       %s, round %llu, ", j->run_id, (unsigned long long)j->round));
    if (j->restart_window > 0)
        return buf_printf(out, "%d restart%s, %d allowed within %g s\n", j->restarts, j->restarts == 1 ? "" : "s",
                          j->max_restarts, j->restart_window);
    return buf_printf(out, "%d of %d restarts used\n", j->restarts, j->max_restarts);
}

int failure_render(const struct failure_job *j, const cJSON *all, struct buf *out)
{
    const cJSON *culprit = failure_culprit(j, all);
    int others = 0;
    TRY(render_head(j, culprit, out));
    if (culprit)
        TRY(render_culprit(culprit, out));
    for (const cJSON *o = culprit ? culprit->next : all->child; o; o = o->next)
        if (others++ < OTHERS_MAX)
            TRY(render_other(o, culprit, out));
    if (others > OTHERS_MAX)
        TRY(buf_printf(out, "  then      %d more\n", others - OTHERS_MAX));
    if (j->unheard > 0)
        TRY(buf_printf(out, "  unheard   %d node%s reported nothing\n", j->unheard, j->unheard > 1 ? "s" : ""));
    return culprit ? render_stderr(culprit, out) : 0;
}
