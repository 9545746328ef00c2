/* Asks all nodes of a job a question, and passes on each rank's answer (ask_nodes.h). */
#include "launcher/tools/stacks/ask_nodes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "common/json/json.h"
#include "launcher/outside/whom.h"

#define SLACK_MS 5000 /* ms beyond the nodes' time, for the answers to arrive */

void ask_nodes_put(const char *text)
{
    for (const unsigned char *p = (const unsigned char *)text; *p; p++)
        putchar((*p < ' ' && *p != '\t') || *p == 0x7f ? '?' : *p);
}

int ask_nodes_read(const char *host, const char *text, const struct ask_nodes *q, struct err *e)
{
    cJSON *o = cJSON_Parse(text), *rank;
    cJSON *ranks = cJSON_GetObjectItemCaseSensitive(o, "ranks");
    const int left_out = json_int_or(o, "left_out", 0);
    char why[80];
    int rc = cJSON_IsArray(ranks) ? 0 : err_set(e, ERR_CORRUPT, "the answer of %s makes no sense", host);
    if (rc == 0)
        cJSON_ArrayForEach(rank, ranks)
        {
            if (rc == 0 && json_int_or(rank, "rank", -1) >= 0)
                rc = q->rank_is(q->arg, host, rank);
        }
    if (rc == 0 && left_out > 0) {
        snprintf(why, sizeof why, "%d more of its ranks had no room in its answer", left_out);
        rc = q->node_is_missing(q->arg, host, why);
    }
    cJSON_Delete(o);
    return rc;
}

static int read_node(const cJSON *node, const struct ask_nodes *q, struct err *e)
{
    char host[128];
    const char *id = json_str_or(node, "id", "?"), *text = json_str_or(node, "text", "");
    snprintf(host, sizeof host, "%.*s", (int)strcspn(id, "+"), id);
    return text[0] ? ask_nodes_read(host, text, q, e) : q->node_is_missing(q->arg, host, json_str_or(node, "why", ""));
}

static int read_all(const redisReply *r, const struct ask_nodes *q, struct err *e)
{
    cJSON *o = r->type == REDIS_REPLY_STRING ? cJSON_ParseWithLength(r->str, r->len) : NULL, *node;
    cJSON *nodes = cJSON_GetObjectItemCaseSensitive(o, "nodes");
    int rc = cJSON_IsArray(nodes) ? 0 : err_set(e, ERR_CORRUPT, "the answer to RDZV.ASK is none");
    if (rc == 0)
        cJSON_ArrayForEach(node, nodes) rc = rc < 0 ? rc : read_node(node, q, e);
    cJSON_Delete(o);
    return rc;
}

int ask_nodes(const struct ask_options *o, const char *run, const struct ask_nodes *q, struct err *e)
{
    struct whom w;
    char ms[24], rank[16];
    redisReply *r = NULL;
    snprintf(ms, sizeof ms, "%lld", (long long)(o->timeout_s * 1000));
    snprintf(rank, sizeof rank, "%d", q->rank);
    const char *const words[] = {"RDZV.ASK", run, q->what, ms, "RANK", rank};
    TRY(whom_init(&w, o, run, e));
    w.ask.timeout_ms += SLACK_MS;
    int rc = whom_request(&w, q->rank < 0 ? 4 : 6, words, &r, e);
    if (rc == 0) {
        rc = read_all(r, q, e);
        freeReplyObject(r);
    }
    whom_finish(&w);
    return rc;
}
