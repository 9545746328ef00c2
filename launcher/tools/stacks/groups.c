#include "launcher/tools/stacks/groups.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/array.h"
#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/json/json.h"
#include "common/json/json_write.h"
#include "launcher/tools/stacks/ask_nodes.h"

/* --- gathering */

static char *join_frames(const cJSON *rank)
{
    const cJSON *frames = cJSON_GetObjectItemCaseSensitive(rank, "frames"), *f;
    struct buf text = {0};
    int rc = buf_addstr(&text, "");
    cJSON_ArrayForEach(f, frames)
    {
        const size_t at = text.len + (text.len > 0);
        if (rc == 0 && cJSON_IsString(f))
            rc = buf_printf(&text, "%s%s", text.len ? "\n" : "", f->valuestring);
        if (rc == 0 && text.len > at)
            ask_nodes_clean(text.data + at);
    }
    if (rc < 0)
        buf_free(&text);
    return text.data;
}

int groups_add(void *groups, const char *host, const cJSON *rank)
{
    struct groups *g = groups;
    struct err e;
    TRY(ARRAY_GROW(g->v, g->cap, g->n + 1, "ranks", &e));
    struct groups_rank *r = &g->v[g->n];
    *r = (struct groups_rank){.rank = json_int_or(rank, "rank", -1),
                              .pid = json_int_or(rank, "pid", 0),
                              .state = json_str_or(rank, "state", "?")[0],
                              .frames = join_frames(rank),
                              .why = strdup(json_str_or(rank, "why", ""))};
    snprintf(r->host, sizeof r->host, "%s", host);
    snprintf(r->wait, sizeof r->wait, "%s", json_str_or(rank, "wait", ""));
    ask_nodes_clean(r->wait);
    if (!r->frames || !r->why) {
        free(r->frames);
        free(r->why);
        return -ENOMEM;
    }
    ask_nodes_clean(r->why);
    r->state = r->state > ' ' && r->state < 0x7f ? r->state : '?';
    g->n++;
    return 0;
}

int groups_miss(void *groups, const char *host, const char *why)
{
    struct groups *g = groups;
    struct err e;
    TRY(ARRAY_GROW(g->missing, g->cap_missing, g->n_missing + 1, "nodes", &e));
    struct groups_missing *m = &g->missing[g->n_missing++];
    snprintf(m->host, sizeof m->host, "%s", host);
    snprintf(m->why, sizeof m->why, "%s", why);
    return 0;
}

void groups_free(struct groups *g)
{
    for (size_t i = 0; i < g->n; i++) {
        free(g->v[i].frames);
        free(g->v[i].why);
    }
    free(g->v);
    free(g->missing);
    *g = (struct groups){0};
}

/* --- sorting */

static int by_stack(const void *a, const void *b)
{
    const struct groups_rank *p = a, *q = b;
    int d = strcmp(p->frames, q->frames);
    d = d ? d : strcmp(p->why, q->why);
    d = d ? d : (p->rank > q->rank) - (p->rank < q->rank);
    return d ? d : strcmp(p->host, q->host);
}

static bool are_alike(const struct groups_rank *p, const struct groups_rank *q)
{
    return strcmp(p->frames, q->frames) == 0 && strcmp(p->why, q->why) == 0;
}

struct span {
    const struct groups_rank *v;
    size_t n;
};

static int by_size(const void *a, const void *b)
{
    const struct span *p = a, *q = b;
    if (p->n != q->n)
        return p->n < q->n ? -1 : 1;
    return (p->v->rank > q->v->rank) - (p->v->rank < q->v->rank);
}

/* *ret: to be freed; NULL: no memory, or nothing is there. Its length. */
static size_t split(struct groups *g, struct span **ret)
{
    struct span *v = g->n ? malloc(g->n * sizeof *v) : NULL;
    size_t n = 0;
    *ret = v;
    if (!v)
        return 0;
    qsort(g->v, g->n, sizeof *g->v, by_stack);
    for (size_t i = 0; i < g->n; i++) {
        if (i == 0 || !are_alike(&g->v[i - 1], &g->v[i]))
            v[n++] = (struct span){&g->v[i], 0};
        v[n - 1].n++;
    }
    qsort(v, n, sizeof *v, by_size);
    return n;
}

/* --- printing */

static void print_ranks(const struct span *s, FILE *out)
{
    fprintf(out, s->n == 1 ? "rank " : "ranks ");
    for (size_t i = 0, k; i < s->n; i = k) {
        for (k = i + 1; k < s->n && s->v[k].rank == s->v[k - 1].rank + 1; k++)
            ;
        fprintf(out, k - i > 1 ? "%s%d-%d" : "%s%d", i ? "," : "", s->v[i].rank, s->v[k - 1].rank);
    }
}

/* What all of them do in the kernel, where it is the same. */
static void print_place(const struct span *s, FILE *out)
{
    const struct groups_rank *first = s->v;
    bool same_wait = true, same_state = true, stopped = first->state == 'T';
    for (size_t i = 1; i < s->n; i++) {
        same_wait = same_wait && strcmp(s->v[i].wait, first->wait) == 0;
        same_state = same_state && s->v[i].state == first->state;
    }
    if (s->n == 1)
        fprintf(out, " (pid %d on %s)", first->pid, first->host);
    if (same_state && stopped)
        fprintf(out, ", stopped by a signal");
    else if (same_wait && first->wait[0])
        fprintf(out, ", in %s", first->wait);
    fputs(":\n", out);
}

static void print_stack(const struct groups_rank *r, FILE *out)
{
    if (!r->frames[0])
        fprintf(out, "    (%s)\n", r->why[0] ? r->why : "no frame is known");
    for (const char *p = r->frames; *p; p += strcspn(p, "\n"), p += *p == '\n')
        fprintf(out, "    %.*s\n", (int)strcspn(p, "\n"), p);
}

void groups_print(struct groups *g, FILE *out)
{
    struct span *v;
    const size_t n = split(g, &v);
    for (size_t i = 0; i < n; i++) {
        print_ranks(&v[i], out);
        print_place(&v[i], out);
        print_stack(v[i].v, out);
    }
    for (size_t i = 0; i < g->n_missing; i++)
        fprintf(out, "%s: %s\n", g->missing[i].host, g->missing[i].why);
    if (g->n == 0 && g->n_missing == 0)
        fputs("no worker runs\n", out);
    free(v);
}

static void add_frames(struct json_write *w, const char *frames)
{
    char line[512];
    json_begin(w, "frames", '[');
    for (const char *p = frames; *p; p += strcspn(p, "\n"), p += *p == '\n') {
        snprintf(line, sizeof line, "%.*s", (int)strcspn(p, "\n"), p);
        json_text(w, NULL, line);
    }
    json_end(w, ']');
}

static void add_span(struct json_write *w, const struct span *s)
{
    json_begin(w, NULL, '{');
    json_begin(w, "ranks", '[');
    for (size_t i = 0; i < s->n; i++) {
        char state[2] = {s->v[i].state};
        json_begin(w, NULL, '{');
        json_int(w, "rank", s->v[i].rank);
        json_int(w, "pid", s->v[i].pid);
        json_text(w, "host", s->v[i].host);
        json_text(w, "state", state);
        json_text(w, "wait", s->v[i].wait);
        json_end(w, '}');
    }
    json_end(w, ']');
    add_frames(w, s->v->frames);
    json_text(w, "why", s->v->why);
    json_end(w, '}');
}

int groups_print_json(struct groups *g, FILE *out, struct err *e)
{
    struct buf text = {0};
    struct json_write w = {.out = &text};
    struct span *v;
    const size_t n = split(g, &v);
    json_begin(&w, NULL, '{');
    json_begin(&w, "groups", '[');
    for (size_t i = 0; i < n; i++)
        add_span(&w, &v[i]);
    json_end(&w, ']');
    json_begin(&w, "missing", '[');
    for (size_t i = 0; i < g->n_missing; i++) {
        json_begin(&w, NULL, '{');
        json_text(&w, "host", g->missing[i].host);
        json_text(&w, "why", g->missing[i].why);
        json_end(&w, '}');
    }
    json_end(&w, ']');
    json_end(&w, '}');
    if (w.rc == 0)
        fprintf(out, "%s\n", text.data);
    buf_free(&text);
    free(v);
    return w.rc < 0 ? err_set(e, w.rc, "no memory for the stacks") : 0;
}
