/* Failures as JSON objects: makes, merges and sorts them (failure.h). */
#include "launcher/report/failure.h"

#include <cjson/cJSON.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/err.h"
#include "common/base/utf8.h"
#include "common/job/exitcode.h"
#include "common/json/json.h"
#include "launcher/report/causes.h"

bool failure_is(const struct failure_worker *w)
{
    return w->hung[0] || (w->ended && !w->told_to_stop && ending_code(w->ending) != 0);
}

int failure_first(const struct failure_worker *w, int n)
{
    int first = -1;
    for (int i = 0; i < n; i++)
        if (failure_is(&w[i]) && (first < 0 || w[i].order < w[first].order))
            first = i;
    return first;
}

/* --- one worker */

/* Add a text; control bytes and bytes that are not UTF-8 become '?'. */
static bool add_text(cJSON *o, const char *name, const char *text)
{
    if (!text)
        return true;
    char *copy = strdup(text);
    if (!copy)
        return false;
    lines_clean(copy, strlen(copy));
    utf8_clean(copy);
    const bool added = cJSON_AddStringToObject(o, name, copy);
    free(copy);
    return added;
}

/* The last whole lines that fit; if the last one alone is too long, its end. */
static const char *cut_tail(const char *text, size_t n)
{
    if (n <= FAILURE_TAIL_BYTES)
        return text;
    const char *from = text + n - FAILURE_TAIL_BYTES, *line = strchr(from, '\n');
    return line && line[1] ? line + 1 : from;
}

static bool add_lines(cJSON *o, char *text, size_t n)
{
    cJSON *lines = cJSON_AddArrayToObject(o, "stderr");
    char *save = NULL;
    if (!lines)
        return false;
    for (char *line = strtok_r((char *)cut_tail(text, n), "\n", &save); line; line = strtok_r(NULL, "\n", &save))
        if (utf8_clean(line), !cJSON_AddItemToArray(lines, cJSON_CreateString(line)))
            return false;
    return true;
}

static bool add_tail(cJSON *o, const struct lines_tail *tail)
{
    struct buf text;
    buf_init(&text, 0);
    bool added = lines_tail_render(tail, FAILURE_TAIL_LINES, "", &text) == 0;
    for (size_t i = 0; i < text.len; i++)
        if (!text.data[i])
            text.data[i] = '?';
    added = added && (text.len == 0 || add_lines(o, text.data, text.len));
    buf_free(&text);
    return added;
}

static bool add_ending(cJSON *o, const struct failure_worker *w, const char *because)
{
    const struct ending ending = w->ending;
    char text[ENDING_TEXT_MAX], whole[ENDING_TEXT_MAX + CAUSES_TEXT_MAX];
    snprintf(whole, sizeof whole, "%s%s", w->hung[0] ? w->hung : ending_text(ending, text, sizeof text),
             because ? because : "");
    bool ok = cJSON_AddNumberToObject(o, "exit_code", w->hung[0] ? EXIT_HUNG : ending_code(ending)) &&
              add_text(o, "ending", whole);
    if (ending.signaled && !w->hung[0])
        ok = ok && cJSON_AddStringToObject(o, "signal", signal_text(ending.value, text, sizeof text));
    return ok;
}

static bool add_progress(cJSON *o, const struct failure_words *words)
{
    return !words->phase || ((words->step < 0 || cJSON_AddNumberToObject(o, "step", (double)words->step)) &&
                             add_text(o, "phase", words->phase));
}

cJSON *failure_describe(const struct failure_worker *w, const struct failure_words *words)
{
    cJSON *o = cJSON_CreateObject();
    if (o && cJSON_AddNumberToObject(o, "rank", w->rank) && cJSON_AddNumberToObject(o, "local_rank", w->local_rank) &&
        cJSON_AddNumberToObject(o, "pid", w->pid) && add_text(o, "host", words->host) &&
        add_text(o, "node", words->node) && add_ending(o, w, words->because) &&
        cJSON_AddNumberToObject(o, "time", words->time) && add_progress(o, words) && add_text(o, "gpu", words->gpu) &&
        add_text(o, "core", words->core) && add_text(o, "memory", words->memory) && add_text(o, "xid", words->xid) &&
        add_text(o, "link", words->link) && add_text(o, "message", words->message) &&
        add_text(o, "message_from", words->message_from) && (!words->tail || add_tail(o, words->tail)) &&
        add_text(o, "stderr_late", words->tail_late))
        return o;
    cJSON_Delete(o);
    return NULL;
}

/* --- all of them */

void failure_add_fault(cJSON *faults, const char *node, const char *fault)
{
    cJSON *o = fault && fault[0] ? cJSON_CreateObject() : NULL;
    if (o && !(add_text(o, "node", node) && add_text(o, "fault", fault) && cJSON_AddItemToArray(faults, o)))
        cJSON_Delete(o);
}

char *failure_encode(const cJSON *own, const char *fault, bool final)
{
    cJSON *o = cJSON_CreateObject(), *list = cJSON_Duplicate(own, true);
    char *text = NULL;
    if (o && list && cJSON_AddBoolToObject(o, "final", final) && add_text(o, "fault", fault) &&
        cJSON_AddItemToObject(o, "failures", list)) {
        list = NULL;
        text = cJSON_PrintUnformatted(o);
    }
    cJSON_Delete(list);
    cJSON_Delete(o);
    return text;
}

bool failure_merge(cJSON *all, cJSON *faults, const char *node, const char *text, size_t n, bool *ret_final)
{
    cJSON *o = n <= FAILURE_TEXT_MAX ? cJSON_ParseWithLength(text, n) : NULL;
    cJSON *theirs = cJSON_GetObjectItemCaseSensitive(o, "failures");
    const bool understood = cJSON_IsArray(theirs);
    *ret_final = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(o, "final"));
    while (understood && theirs->child) {
        cJSON *w = cJSON_DetachItemViaPointer(theirs, theirs->child);
        if (json_int_or(w, "rank", -1) < 0 || !cJSON_AddItemToArray(all, w))
            cJSON_Delete(w);
    }
    if (understood)
        failure_add_fault(faults, node, json_str_or(o, "fault", ""));
    cJSON_Delete(o);
    return understood;
}

/* The key by which failures are sorted: thousands of ranks may fail at once. */
struct place {
    cJSON *o;
    bool is_culprit;
    double time;
    int at; /* position; failures of a node are already in the order of deaths */
};

static int by_place(const void *a, const void *b)
{
    const struct place *p = a, *q = b;
    if (p->is_culprit != q->is_culprit)
        return p->is_culprit ? -1 : 1;
    if (p->time != q->time && !p->is_culprit)
        return p->time < q->time ? -1 : 1;
    return p->at - q->at;
}

void failure_sort(cJSON *all, int culprit)
{
    const int n = cJSON_GetArraySize(all);
    struct place *v = n > 0 ? malloc((size_t)n * sizeof *v) : NULL;
    if (!v)
        return;
    for (int i = 0; i < n; i++) {
        cJSON *o = cJSON_DetachItemViaPointer(all, all->child);
        v[i] = (struct place){o, json_int_or(o, "rank", -1) == culprit, json_f64_or(o, "time", -1), i};
    }
    qsort(v, (size_t)n, sizeof *v, by_place);
    for (int i = 0; i < n; i++)
        cJSON_AddItemToArray(all, v[i].o);
    free(v);
}

/* --- as JSON */

const cJSON *failure_culprit(const struct failure_job *j, const cJSON *all)
{
    const cJSON *first = all->child;
    return first && (!j->cause[0] || json_int_or(first, "rank", -1) == j->culprit) ? first : NULL;
}

/* Of the first `keep` failures. */
static cJSON *failure_tree(const struct failure_job *j, const cJSON *all, int keep)
{
    cJSON *o = cJSON_CreateObject(), *list = cJSON_CreateArray();
    int n = 0;
    for (const cJSON *w = all->child; w && list && n < keep; w = w->next, n++)
        cJSON_AddItemToArray(list, cJSON_Duplicate(w, true));
    if (o && list && add_text(o, "run_id", j->run_id) && add_text(o, "program", j->program) &&
        cJSON_AddNumberToObject(o, "round", (double)j->round) && cJSON_AddNumberToObject(o, "restarts", j->restarts) &&
        cJSON_AddNumberToObject(o, "max_restarts", j->max_restarts) &&
        cJSON_AddNumberToObject(o, "exit_code", j->exit_code) && add_text(o, "cause", j->cause) &&
        cJSON_AddNumberToObject(o, "unheard_nodes", j->unheard) &&
        (!j->faults || !j->faults->child || cJSON_AddItemToObject(o, "faults", cJSON_Duplicate(j->faults, true))) &&
        cJSON_AddItemToObject(o, "failures", list))
        return o;
    cJSON_Delete(list);
    cJSON_Delete(o);
    return NULL;
}

char *failure_json(const struct failure_job *j, const cJSON *all)
{
    cJSON *o = failure_tree(j, all, INT_MAX);
    char *text = o ? cJSON_Print(o) : NULL;
    cJSON_Delete(o);
    return text;
}

char *failure_json_short(const struct failure_job *j, const cJSON *all, size_t max)
{
    const int n = cJSON_GetArraySize(all);
    char *text = NULL;
    for (int keep = n; !text && (keep > 0 || n == 0); keep /= 2) {
        cJSON *o = failure_tree(j, all, keep);
        if (o && (keep == n || cJSON_AddNumberToObject(o, "more", n - keep)))
            text = cJSON_PrintUnformatted(o);
        cJSON_Delete(o);
        if (!o || n == 0)
            break;
        if (text && strlen(text) > max) {
            free(text);
            text = NULL;
        }
    }
    return text;
}

/* For a process that a signal ended, torchrun's exit code is the negative signal number. */
static int torchrun_code(const cJSON *w)
{
    const int code = json_int_or(w, "exit_code", -1);
    return json_str_or(w, "signal", "")[0] ? 128 - code : code;
}

/* The time of a failure. Another node may have sent any number. */
static long long time_of(const cJSON *w)
{
    const double t = w ? json_f64_or(w, "time", -1) : -1;
    return t >= 0 && t < 0x1p53 ? (long long)t : (long long)time(NULL);
}

char *failure_record_json(const struct failure_job *j, const cJSON *all)
{
    const cJSON *w = failure_culprit(j, all);
    char ending[128], stamp[32], *text = NULL;
    const char *message = w ? json_str_or(w, "message", "") : j->cause;
    snprintf(ending, sizeof ending, "rank %d %s", w ? json_int_or(w, "rank", -1) : -1,
             w ? json_str_or(w, "ending", "") : "");
    snprintf(stamp, sizeof stamp, "%lld", time_of(w));
    cJSON *o = cJSON_CreateObject(), *m = cJSON_AddObjectToObject(o, "message");
    cJSON *extra = cJSON_AddObjectToObject(m, "extraInfo");
    if (extra && add_text(m, "message", message[0] ? message : ending) &&
        cJSON_AddStringToObject(extra, "timestamp", stamp) &&
        cJSON_AddNumberToObject(m, "errorCode", w ? torchrun_code(w) : j->exit_code) &&
        cJSON_AddNumberToObject(o, "exitcode", w ? json_int_or(w, "exit_code", -1) : j->exit_code) &&
        (!w || cJSON_AddNumberToObject(o, "rank", json_int_or(w, "rank", -1))))
        text = cJSON_PrintUnformatted(o);
    cJSON_Delete(o);
    return text;
}
