/* Parses a node's report, and writes it as JSON (node_figures.h). */
#include "rendezvousd/history/node_figures.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "common/json/json_write.h"
#include "common/rdzv/wire/rdzv_wire.h"

/* --- reading */

/* Parse the number that ends at `end`, and move *at behind it; NAN: not a number. */
static double take_number(const char **at, char end)
{
    char *stop;
    const size_t n = strcspn(*at, ",:");
    const double v = n ? strtod(*at, &stop) : NAN;
    const bool good = n && stop == *at + n && isfinite(v);
    *at += n;
    if (**at == end && end)
        ++*at;
    return good ? v : NAN;
}

double node_figures_number(const char *fields, size_t n, const char *key)
{
    char text[40];
    const char *at = text;
    if (rdzv_field_find(fields, n, key, text, sizeof text) != 1)
        return NAN;
    return take_number(&at, 0);
}

static int count_items(const char *text, int most)
{
    int n = *text != 0;
    for (; *text && n < most; text++)
        n += *text == ',';
    return n;
}

/* Parse one list into one member of all ranks. */
static void take_list(struct node_figures *f, const char *text, size_t member)
{
    for (int i = 0; i < f->n; i++)
        *(float *)((char *)&f->ranks[i] + member) = *text ? (float)take_number(&text, ',') : NAN;
}

static int take_ranks(struct node_figures *f, const char *fields, size_t n, char *text)
{
    static const struct {
        const char *key;
        size_t member;
    } lists[] = {{"steps", offsetof(struct rank_figures, step)},
                 {"step_ms", offsetof(struct rank_figures, step_ms)},
                 {"wait_ms", offsetof(struct rank_figures, wait_ms)}};
    if (rdzv_field_find(fields, n, "steps", text, n + 1) != 1)
        return 0;
    const int count = count_items(text, NODE_FIGURES_RANKS);
    struct rank_figures *ranks = realloc(f->ranks, ((size_t)count + 1) * sizeof *ranks);
    if (!ranks)
        return -ENOMEM;
    f->ranks = ranks;
    f->n = count;
    const double base = node_figures_number(fields, n, "base");
    f->base = base >= 0 && base < 1e7 ? (int)base : -1;
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        take_list(f, rdzv_field_find(fields, n, lists[i].key, text, n + 1) == 1 ? text : "", lists[i].member);
    return 0;
}

static int take_gpus(struct node_figures *f, const char *fields, size_t n, char *text)
{
    const char *at = text;
    if (rdzv_field_find(fields, n, "gpus", text, n + 1) != 1)
        return 0;
    const int count = count_items(text, NODE_FIGURES_GPUS);
    struct gpu_figures *gpus = realloc(f->gpus, ((size_t)count + 1) * sizeof *gpus);
    if (!gpus)
        return -ENOMEM;
    f->gpus = gpus;
    f->n_gpus = count;
    for (int i = 0; i < count; i++) {
        gpus[i].percent = (float)take_number(&at, ':');
        gpus[i].memory_mib = (float)take_number(&at, ':');
        gpus[i].total_mib = (float)take_number(&at, ',');
    }
    return 0;
}

int node_figures_take(struct node_figures *f, const char *fields, size_t n)
{
    char *text = malloc(n + 1);
    if (!text)
        return -ENOMEM;
    f->cpu = (float)node_figures_number(fields, n, "cpu");
    f->memory_mib = (float)node_figures_number(fields, n, "mem");
    f->total_mib = (float)node_figures_number(fields, n, "mem_total");
    int rc = take_ranks(f, fields, n, text);
    rc = rc ? rc : take_gpus(f, fields, n, text);
    free(text);
    return rc;
}

void node_figures_free(struct node_figures *f)
{
    free(f->node);
    free(f->ranks);
    free(f->gpus);
}

float node_figures_slowest(const struct node_figures *f)
{
    float most = NAN;
    for (int i = 0; i < f->n; i++)
        most = fmaxf(most, f->ranks[i].step_ms);
    return most;
}

/* --- writing */

void figures_number(struct json_write *w, const char *key, double v)
{
    char text[32];
    snprintf(text, sizeof text, isfinite(v) ? "%.7g" : "null", v);
    json_raw(w, key, text);
}

void node_figures_write(const struct node_figures *f, double now_s, struct json_write *w)
{
    json_begin(w, NULL, '{');
    json_text(w, "node", f->node);
    figures_number(w, "age_s", now_s - f->at_s);
    figures_number(w, "cpu", f->cpu);
    figures_number(w, "memory", f->memory_mib);
    figures_number(w, "memory_total", f->total_mib);
    json_begin(w, "gpus", '[');
    for (int i = 0; i < f->n_gpus; i++) {
        json_begin(w, NULL, '{');
        figures_number(w, "percent", f->gpus[i].percent);
        figures_number(w, "memory", f->gpus[i].memory_mib);
        figures_number(w, "memory_total", f->gpus[i].total_mib);
        json_end(w, '}');
    }
    json_end(w, ']');
    json_end(w, '}');
}

void node_figures_write_ranks(const struct node_figures *f, size_t *room, struct json_write *w)
{
    for (int i = 0; i < f->n && f->base >= 0 && *room > 0; i++, --*room) {
        json_begin(w, NULL, '{');
        json_int(w, "rank", f->base + i);
        json_text(w, "node", f->node);
        figures_number(w, "step", f->ranks[i].step);
        figures_number(w, "step_ms", f->ranks[i].step_ms);
        figures_number(w, "wait_ms", f->ranks[i].wait_ms);
        json_end(w, '}');
    }
}
