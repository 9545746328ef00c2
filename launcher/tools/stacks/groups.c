/* Groups ranks by equal call stacks, and prints the groups (groups.h). */
#include "launcher/tools/stacks/groups.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/array.h"
#include "common/base/err.h"
#include "common/json/json.h"
#include "launcher/tools/stacks/ask_nodes.h"

/* --- gathering */

int groups_add(void *groups, const char *host, const cJSON *rank)
{
    struct groups *g = groups;
    struct err e;
    const cJSON *frames = cJSON_GetObjectItemCaseSensitive(rank, "frames");
    TRY(ARRAY_GROW(g->v, g->cap, g->n + 1, "ranks", &e));
    struct groups_rank *r = &g->v[g->n++];
    *r = (struct groups_rank){.rank = json_int_or(rank, "rank", -1), .o = cJSON_Duplicate(rank, true)};
    r->stack = cJSON_GetArraySize(frames) > 0 ? cJSON_PrintUnformatted(frames) : strdup(json_str_or(rank, "why", ""));
    return r->stack && cJSON_AddStringToObject(r->o, "host", host) ? 0 : -ENOMEM;
}

int groups_miss(void *groups, const char *host, const char *why)
{
    struct groups *g = groups;
    cJSON *o = cJSON_CreateObject();
    g->missing = g->missing ? g->missing : cJSON_CreateArray();
    if (cJSON_AddStringToObject(o, "host", host) && cJSON_AddStringToObject(o, "why", why) &&
        cJSON_AddItemToArray(g->missing, o))
        return 0;
    cJSON_Delete(o);
    return -ENOMEM;
}

void groups_free(struct groups *g)
{
    for (size_t i = 0; i < g->n; i++) {
        cJSON_Delete(g->v[i].o);
        free(g->v[i].stack);
    }
    free(g->v);
    cJSON_Delete(g->missing);
    *g = (struct groups){0};
}

/* --- sorting */

static int by_stack(const void *a, const void *b)
{
    const struct groups_rank *p = a, *q = b;
    const int d = strcmp(p->stack, q->stack);
    return d ? d : (p->rank > q->rank) - (p->rank < q->rank);
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

static size_t split(struct groups *g, struct span *v)
{
    size_t n = 0;
    if (g->n > 0)
        qsort(g->v, g->n, sizeof *g->v, by_stack);
    for (size_t i = 0; i < g->n; i++) {
        if (i == 0 || strcmp(g->v[i - 1].stack, g->v[i].stack) != 0)
            v[n++] = (struct span){&g->v[i], 0};
        v[n - 1].n++;
    }
    qsort(v, n, sizeof *v, by_size);
    return n;
}

/* --- printing */

static void print_ranks(const struct span *s)
{
    fputs(s->n == 1 ? "rank " : "ranks ", stdout);
    for (size_t i = 0, k; i < s->n; i = k) {
        for (k = i + 1; k < s->n && s->v[k].rank == s->v[k - 1].rank + 1; k++)
            ;
        printf(k - i > 1 ? "%s%d-%d" : "%s%d", i ? "," : "", s->v[i].rank, s->v[k - 1].rank);
    }
}

/* The text of the JSON member `name`, if it is the same for all ranks of the span; else "". */
static const char *common(const struct span *s, const char *name)
{
    const char *first = json_str_or(s->v[0].o, name, "");
    for (size_t i = 1; i < s->n; i++)
        if (strcmp(json_str_or(s->v[i].o, name, ""), first) != 0)
            return "";
    return first;
}

static void print_group(const struct span *s)
{
    const cJSON *frame;
    const char *wait = common(s, "wait");
    print_ranks(s);
    if (s->n == 1) {
        printf(" (pid %d on ", json_int_or(s->v->o, "pid", 0));
        ask_nodes_put(json_str_or(s->v->o, "host", "?"));
        putchar(')');
    }
    fputs(strcmp(common(s, "state"), "T") == 0 ? ", stopped by a signal" : wait[0] ? ", in " : "", stdout);
    if (strcmp(common(s, "state"), "T") != 0)
        ask_nodes_put(wait);
    puts(":");
    cJSON_ArrayForEach(frame, cJSON_GetObjectItemCaseSensitive(s->v->o, "frames"))
    {
        fputs("    ", stdout);
        ask_nodes_put(cJSON_IsString(frame) ? frame->valuestring : "?");
        putchar('\n');
    }
    if (json_str_or(s->v->o, "why", "")[0]) {
        fputs("    (", stdout);
        ask_nodes_put(json_str_or(s->v->o, "why", ""));
        puts(")");
    }
}

static void print_missing(const cJSON *missing)
{
    const cJSON *m;
    cJSON_ArrayForEach(m, missing)
    {
        ask_nodes_put(json_str_or(m, "host", "?"));
        fputs(": ", stdout);
        ask_nodes_put(json_str_or(m, "why", ""));
        putchar('\n');
    }
}

static int print_json(struct groups *g, const struct span *v, size_t n)
{
    cJSON *root = cJSON_CreateObject(), *groups = cJSON_AddArrayToObject(root, "groups");
    for (size_t i = 0; i < n; i++) {
        cJSON *group = cJSON_CreateObject(), *ranks = cJSON_AddArrayToObject(group, "ranks");
        cJSON_AddItemToArray(groups, group);
        cJSON_AddItemToObject(group, "frames", cJSON_DetachItemFromObjectCaseSensitive(v[i].v->o, "frames"));
        for (size_t k = 0; k < v[i].n; k++) {
            cJSON_DeleteItemFromObjectCaseSensitive(v[i].v[k].o, "frames");
            cJSON_AddItemReferenceToArray(ranks, v[i].v[k].o);
        }
    }
    cJSON_AddItemReferenceToObject(root, "missing", g->missing);
    char *text = cJSON_PrintUnformatted(root);
    if (text)
        puts(text);
    free(text);
    cJSON_Delete(root);
    return text ? 0 : -ENOMEM;
}

int groups_print(struct groups *g, bool json)
{
    struct span *v = malloc((g->n + 1) * sizeof *v);
    if (!v)
        return -ENOMEM;
    const size_t n = split(g, v);
    const int rc = json ? print_json(g, v, n) : 0;
    for (size_t i = 0; i < n && !json; i++)
        print_group(&v[i]);
    if (!json)
        print_missing(g->missing);
    if (!json && g->n == 0 && !g->missing)
        puts("no worker runs");
    free(v);
    return rc;
}
