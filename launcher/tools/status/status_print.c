/* Prints the answer of RDZV.STATUS as tables; see status.h. */
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/array.h"
#include "common/base/err.h"
#include "common/json/json.h"
#include "launcher/tools/status/status.h"

#define COLUMNS_MAX 10
#define GAP 2

/* --- tables: cells are collected first, then printed with the width of each column */

struct table {
    int columns;
    size_t rows, cap;
    char **cells; /* rows * columns */
    bool failed;
};

static void add_cell(struct table *t, char *text)
{
    if (ARRAY_RESERVE(t->cells, t->cap, t->rows + 1) < 0) {
        free(text);
        t->failed = true;
        return;
    }
    t->cells[t->rows++] = text;
}

static void cell(struct table *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void cell(struct table *t, const char *fmt, ...)
{
    char *text = NULL;
    va_list ap;
    va_start(ap, fmt);
    if (vasprintf(&text, fmt, ap) < 0)
        text = NULL;
    va_end(ap);
    for (char *p = text; p && *p; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f)
            *p = '?'; /* a foreign text must not control the terminal */
    add_cell(t, text);
}

static size_t width(const char *text)
{
    size_t n = 0;
    for (; text && *text; text++)
        n += ((unsigned char)*text & 0xc0) != 0x80; /* bytes that begin a character */
    return n;
}

static void print(const struct table *t, FILE *out)
{
    size_t widest[COLUMNS_MAX] = {0};
    for (size_t i = 0; i < t->rows; i++) {
        size_t w = width(t->cells[i]), *at = &widest[i % (size_t)t->columns];
        *at = w > *at ? w : *at;
    }
    for (size_t i = 0; i < t->rows; i++) {
        size_t column = i % (size_t)t->columns;
        bool last = column + 1 == (size_t)t->columns;
        fputs(t->cells[i] ? t->cells[i] : "", out);
        if (last)
            putc('\n', out);
        else
            fprintf(out, "%*s", (int)(widest[column] - width(t->cells[i]) + GAP), "");
    }
}

static int finish(struct table *t, FILE *out, struct err *e)
{
    if (!t->failed)
        print(t, out);
    for (size_t i = 0; i < t->rows; i++)
        free(t->cells[i]);
    free(t->cells);
    return t->failed ? err_set(e, -ENOMEM, "no memory for a table") : 0;
}

/* --- values: a missing one is shown as "-" */

static const char *text(const cJSON *o, const char *name)
{
    const char *s = json_str_or(o, name, "");
    return *s ? s : "-";
}

static void number_cell(struct table *t, double v)
{
    if (isnan(v))
        cell(t, "-");
    else
        cell(t, "%.5g", v);
}

static void span_cell(struct table *t, double ms, const char *after)
{
    if (isnan(ms)) {
        cell(t, "-");
        return;
    }
    long long s = ms < 0 ? 0 : (long long)(ms / 1000);
    if (s < 60)
        cell(t, "%llds%s", s, after);
    else if (s < 3600)
        cell(t, "%lldm%02llds%s", s / 60, s % 60, after);
    else
        cell(t, "%lldh%02lldm%s", s / 3600, s % 3600 / 60, after);
}

/* The newest report of a job's nodes. */
static const cJSON *report(const cJSON *job)
{
    const cJSON *node, *best = NULL;
    cJSON_ArrayForEach(node, cJSON_GetObjectItemCaseSensitive(job, "nodes"))
    {
        const cJSON *r = cJSON_GetObjectItemCaseSensitive(node, "report");
        if (r && (!best || json_f64_or(r, "step", NAN) > json_f64_or(best, "step", NAN)))
            best = r;
    }
    return best;
}

static int world(const cJSON *job)
{
    const cJSON *node;
    double n = 0;
    cJSON_ArrayForEach(node, cJSON_GetObjectItemCaseSensitive(job, "nodes"))
    {
        if (cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(node, "member")))
            n += json_f64_or(node, "slots", NAN);
    }
    return (int)n;
}

/* --- the tables */

static void job_row(struct table *t, const cJSON *job, bool owners)
{
    const cJSON *r = report(job);
    if (owners)
        cell(t, "%s", text(job, "principal"));
    cell(t, "%s", text(job, "run"));
    cell(t, "%s", text(job, "state"));
    cell(t, "%.0f", json_f64_or(job, "round", NAN));
    double count = json_f64_or(job, "node_count", NAN); /* a daemon does not list the nodes of a very large job */
    if (isnan(count))
        count = cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(job, "nodes"));
    if (isnan(json_f64_or(job, "min_nodes", NAN))) /* only a daemon knows */
        cell(t, "%.0f", count);
    else
        cell(t, "%.0f of %.0f:%.0f", count, json_f64_or(job, "min_nodes", NAN), json_f64_or(job, "max_nodes", NAN));
    cell(t, "%d", isnan(json_f64_or(job, "world_size", NAN)) ? world(job) : (int)json_f64_or(job, "world_size", NAN));
    if (isnan(json_f64_or(job, "max_restarts", NAN)))
        cell(t, "%.0f", json_f64_or(job, "restart_count", NAN));
    else
        cell(t, "%.0f of %.0f", json_f64_or(job, "restart_count", NAN), json_f64_or(job, "max_restarts", NAN));
    number_cell(t, json_f64_or(r, "step", NAN));
    number_cell(t, json_f64_or(r, "images_per_s", NAN));
    number_cell(t, json_f64_or(r, "loss", NAN));
    span_cell(t, json_f64_or(job, "age_ms", NAN), "");
}

/* A finished job, from the daemon's history. */
static void ended_row(struct table *t, const cJSON *job)
{
    cell(t, "%s", text(job, "run"));
    cell(t, "%s", text(job, "state"));
    cell(t, "%.0f", json_f64_or(job, "round", NAN));
    cell(t, "%.0f of %.0f:%.0f", json_f64_or(job, "nodes", NAN), json_f64_or(job, "min_nodes", NAN),
         json_f64_or(job, "max_nodes", NAN));
    cell(t, "%.0f", json_f64_or(job, "world_size", NAN));
    cell(t, "%.0f of %.0f", json_f64_or(job, "restarts", NAN), json_f64_or(job, "max_restarts", NAN));
    number_cell(t, json_f64_or(job, "step", NAN));
    number_cell(t, json_f64_or(job, "images_per_s", NAN));
    number_cell(t, json_f64_or(job, "loss", NAN));
    span_cell(t, ((double)time(NULL) - json_f64_or(job, "started", NAN)) * 1000, "");
}

static bool is_listed(const cJSON *jobs, const cJSON *ended)
{
    const cJSON *job;
    cJSON_ArrayForEach(job, jobs)
    {
        if (strcmp(text(job, "instance"), text(ended, "instance")) == 0)
            return true;
    }
    return false;
}

static void headings(struct table *t, const char *const *names)
{
    for (; *names; names++, t->columns++)
        cell(t, "%s", *names);
}

/* A line about a job that has too few nodes. */
static void print_waiting(const cJSON *job, FILE *out)
{
    const double least = json_f64_or(job, "min_nodes", NAN), here = json_f64_or(job, "here", NAN);
    const char *missing = text(job, "missing"), *silent = text(job, "silent");
    struct table t = {.columns = 1};
    struct err e;
    if (isnan(json_f64_or(job, "waiting_ms", NAN)))
        return;
    cell(&t, "%s waits for %.0f more of %.0f nodes%s%s%s%s: for %.0f s, given up in %.0f s", text(job, "run"),
         least - here, least, *missing == '-' ? "" : ", node ranks ", *missing == '-' ? "" : missing,
         *silent == '-' ? "" : "; nothing is heard of ", *silent == '-' ? "" : silent,
         json_f64_or(job, "waiting_ms", NAN) / 1000, json_f64_or(job, "gives_up_ms", NAN) / 1000);
    putc('\n', out);
    finish(&t, out, &e);
}

/* A line about a job whose log its daemon cannot write. */
static void print_unlogged(const cJSON *job, FILE *out)
{
    struct table t = {.columns = 1};
    struct err e;
    if (!cJSON_IsFalse(cJSON_GetObjectItemCaseSensitive(job, "durable")))
        return;
    cell(&t, "%s would be lost if rendezvousd ended: its log cannot be written (is the disk full?)", text(job, "run"));
    putc('\n', out);
    finish(&t, out, &e);
}

static int print_jobs(const cJSON *jobs, const cJSON *ended, bool owners, FILE *out, struct err *e)
{
    struct table t = {0};
    const cJSON *job;
    if (owners)
        headings(&t, (const char *const[]){"PRINCIPAL", NULL});
    headings(&t, (const char *const[]){"RUN", "STATE", "ROUND", "NODES", "RANKS", "RESTARTS", "STEP", "THROUGHPUT",
                                       "LOSS", "AGE", NULL});
    cJSON_ArrayForEach(job, ended)
    {
        if (!is_listed(jobs, job))
            ended_row(&t, job);
    }
    cJSON_ArrayForEach(job, jobs) job_row(&t, job, owners);
    TRY(finish(&t, out, e));
    cJSON_ArrayForEach(job, jobs)
    {
        print_waiting(job, out);
        print_unlogged(job, out);
    }
    return 0;
}

static void node_row(struct table *t, const cJSON *n, bool with_ras)
{
    const cJSON *r = cJSON_GetObjectItemCaseSensitive(n, "report");
    double base = json_f64_or(n, "rank_base", NAN), slots = json_f64_or(n, "slots", NAN);
    bool member = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(n, "member"));
    cell(t, "%s", text(n, "id"));
    cell(t, "%s", text(n, "addr"));
    if (member && base >= 0)
        cell(t, "%.0f-%.0f", base, base + slots - 1);
    else
        cell(t, "-");
    cell(t, "%s", text(n, "state"));
    number_cell(t, json_f64_or(r, "step", NAN));
    number_cell(t, json_f64_or(r, "images_per_s", NAN));
    number_cell(t, json_f64_or(r, "loss", NAN));
    span_cell(t, json_f64_or(n, "heard_ms_ago", NAN), " ago");
    if (with_ras)
        cell(t, "%s", text(r, "ras"));
}

static int print_nodes(const cJSON *nodes, FILE *out, struct err *e)
{
    struct table t = {0};
    const cJSON *n;
    bool with_ras = false;
    cJSON_ArrayForEach(n, nodes) with_ras |= cJSON_HasObjectItem(cJSON_GetObjectItemCaseSensitive(n, "report"), "ras");
    headings(&t, (const char *const[]){"NODE", "ADDRESS", "RANKS", "STATE", "STEP", "THROUGHPUT", "LOSS", "HEARD",
                                       with_ras ? "RAS" : NULL, NULL});
    cJSON_ArrayForEach(n, nodes) node_row(&t, n, with_ras);
    putc('\n', out);
    return finish(&t, out, e);
}

static int print_restarts(const cJSON *list, double now, FILE *out, struct err *e)
{
    struct table t = {0};
    const cJSON *r;
    if (cJSON_GetArraySize(list) == 0)
        return 0;
    headings(&t, (const char *const[]){"RESTART", "ROUND", "RANK", "EXIT", "CAUSE", NULL});
    cJSON_ArrayForEach(r, list)
    {
        span_cell(&t, now - json_f64_or(r, "at_ms", NAN), " ago");
        number_cell(&t, json_f64_or(r, "round", NAN));
        number_cell(&t, json_f64_or(r, "rank", NAN));
        number_cell(&t, json_f64_or(r, "exit_code", NAN));
        cell(&t, "%s", text(r, "cause"));
    }
    putc('\n', out);
    return finish(&t, out, e);
}

static int print_events(const cJSON *list, double now, FILE *out, struct err *e)
{
    struct table t = {0};
    const cJSON *r;
    if (cJSON_GetArraySize(list) == 0)
        return 0;
    headings(&t, (const char *const[]){"EVENT", "ROUND", "WHAT", NULL});
    cJSON_ArrayForEach(r, list)
    {
        span_cell(&t, now - json_f64_or(r, "at_ms", NAN), " ago");
        number_cell(&t, json_f64_or(r, "round", NAN));
        cell(&t, "%s", text(r, "text"));
    }
    putc('\n', out);
    return finish(&t, out, e);
}

/* What the program names itself, as the node of rank 0 has it. */
static int print_metrics(const cJSON *nodes, FILE *out, struct err *e)
{
    struct table t = {0};
    const cJSON *n, *m;
    cJSON_ArrayForEach(n, nodes)
    {
        const cJSON *list = cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(n, "report"), "metrics");
        cJSON_ArrayForEach(m, list)
        {
            if (t.columns == 0)
                headings(&t, (const char *const[]){"METRIC", "VALUE", "UNIT", NULL});
            cell(&t, "%s", text(m, "name"));
            number_cell(&t, json_f64_or(m, "value", NAN));
            cell(&t, "%s", text(m, "unit"));
        }
    }
    if (t.columns == 0)
        return 0;
    putc('\n', out);
    return finish(&t, out, e);
}

static int print_details(const cJSON *job, FILE *out, struct err *e)
{
    double now = json_f64_or(job, "age_ms", NAN); /* times are since the job began */
    TRY(print_nodes(cJSON_GetObjectItemCaseSensitive(job, "nodes"), out, e));
    TRY(print_metrics(cJSON_GetObjectItemCaseSensitive(job, "nodes"), out, e));
    TRY(print_restarts(cJSON_GetObjectItemCaseSensitive(job, "restarts"), now, out, e));
    return print_events(cJSON_GetObjectItemCaseSensitive(job, "events"), now, out, e);
}

static int print_ends(const cJSON *ended, FILE *out, struct err *e)
{
    struct table t = {0};
    const cJSON *job;
    headings(&t, (const char *const[]){"ENDED", "EXIT", "RANK", "CAUSE", NULL});
    cJSON_ArrayForEach(job, ended)
    {
        span_cell(&t, ((double)time(NULL) - json_f64_or(job, "ended", NAN)) * 1000, " ago");
        number_cell(&t, json_f64_or(job, "exit_code", NAN));
        number_cell(&t, json_f64_or(job, "rank", NAN) < 0 ? NAN : json_f64_or(job, "rank", NAN));
        cell(&t, "%s", text(job, "cause"));
    }
    putc('\n', out);
    return finish(&t, out, e);
}

int status_print(const char *json, enum status_what what, FILE *out, struct err *e)
{
    const bool details = what == STATUS_DETAILS;
    cJSON *o = cJSON_Parse(json), *one = NULL;
    const cJSON *jobs = cJSON_GetObjectItemCaseSensitive(o, "jobs");
    const cJSON *ended = cJSON_GetObjectItemCaseSensitive(o, "ended");
    if (!o || (!jobs && !ended && !cJSON_GetObjectItemCaseSensitive(o, "run"))) {
        cJSON_Delete(o);
        return err_set(e, ERR_CORRUPT, "the answer to RDZV.STATUS is no list of jobs");
    }
    if (!jobs && !ended) { /* of one job */
        one = cJSON_CreateArray();
        cJSON_AddItemReferenceToArray(one, o);
        jobs = one;
    }
    int rc = print_jobs(jobs, ended, what == STATUS_OWNERS, out, e);
    if (rc == 0 && details && ended)
        rc = print_ends(ended, out, e);
    const cJSON *job;
    cJSON_ArrayForEach(job, jobs)
    {
        if (rc == 0 && details)
            rc = print_details(job, out, e);
    }
    cJSON_Delete(one);
    cJSON_Delete(o);
    return rc;
}
