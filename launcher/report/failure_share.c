/* Exchanges failures between the nodes of a round (failure_share.h). */
#include "launcher/report/failure_share.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "common/base/log.h"
#include "common/base/seeded_hash.h"
#include "common/rdzv/machine/rdzv.h"
#include "launcher/rendezvous/leader_link.h"
#include "launcher/report/failure.h"

struct failure_share {
    uv_loop_t *loop;
    const bool *hurry;
    /* on group rank 0 */
    int others;                  /* nodes of the round but this */
    struct failure_heard *heard; /* what each node sent, the newest only */
    struct leader_link *link;    /* elsewhere */
    bool refused;                /* group rank 0 refused it, or cannot be reached */
    uv_timer_t late;
    bool is_late;
};

/* --- sending */

static void on_answer(void *arg, const char *status)
{
    struct failure_share *s = arg;
    s->refused = s->refused || !status;
    if (!status)
        log_debug("agent", "group rank 0 does not take our failures");
}

static void on_lost(void *arg, const char *why)
{
    struct failure_share *s = arg;
    s->refused = true;
    log_debug("agent", "cannot tell group rank 0 of our failures: %s", why);
}

void failure_share_send(struct failure_share *s, uint64_t round, const struct endpoint *group_rank_0,
                        const struct cJSON *own, const char *fault, bool final)
{
    s->refused = leader_link_tell(s->link, round, group_rank_0, failure_encode(own, fault, final)) < 0;
}

/* --- waiting */

static void on_late(uv_timer_t *t)
{
    ((struct failure_share *)t->data)->is_late = true;
}

static void start_wait(struct failure_share *s)
{
    s->is_late = false;
    uv_update_time(s->loop);
    uv_timer_start(&s->late, on_late, FAILURE_SHARE_MS, 0);
}

bool failure_share_wait_sent(struct failure_share *s)
{
    start_wait(s);
    while (!s->refused && leader_link_unanswered(s->link) > 0 && !s->is_late && !*s->hurry)
        uv_run(s->loop, UV_RUN_ONCE);
    uv_timer_stop(&s->late);
    return !s->refused && leader_link_unanswered(s->link) == 0;
}

/* --- collecting */

struct failure_heard {
    UT_hash_handle hh;
    char *text;
    size_t n;
    bool final;
    char node[RDZV_ID_MAX + 1];
};

static void forget(struct failure_share *s)
{
    struct failure_heard *h, *next;
    HASH_ITER (hh, s->heard, h, next) {
        HASH_DEL(s->heard, h);
        free(h->text);
        free(h);
    }
}

static struct failure_heard *find_or_add(struct failure_share *s, const char *node)
{
    struct failure_heard *h;
    HASH_FIND_STR(s->heard, node, h);
    if (h)
        return h;
    if ((int)HASH_COUNT(s->heard) >= s->others || strlen(node) >= sizeof h->node || !(h = calloc(1, sizeof *h)))
        return NULL;
    strcpy(h->node, node);
    HASH_ADD_STR(s->heard, node, h);
    if (h->hh.tbl)
        return h;
    free(h);
    return NULL;
}

int failure_share_receive(struct failure_share *s, const char *node, const char *text, size_t n)
{
    cJSON *list = cJSON_CreateArray();
    bool final;
    const bool understood = list && failure_merge(list, NULL, node, text, n, &final);
    cJSON_Delete(list);
    struct failure_heard *h = understood ? find_or_add(s, node) : NULL;
    char *copy = h ? malloc(n) : NULL;
    if (!copy)
        return ERR_REFUSED;
    memcpy(copy, text, n);
    free(h->text);
    h->text = copy;
    h->n = n;
    h->final = final;
    return 0;
}

static int count_final(const struct failure_share *s)
{
    int n = 0;
    for (const struct failure_heard *h = s->heard; h; h = h->hh.next)
        n += h->final;
    return n;
}

int failure_share_collect(struct failure_share *s, int lost, struct cJSON *all, struct cJSON *faults)
{
    bool final;
    start_wait(s);
    while (count_final(s) < s->others - lost && !s->is_late && !*s->hurry)
        uv_run(s->loop, UV_RUN_ONCE);
    uv_timer_stop(&s->late);
    for (const struct failure_heard *h = s->heard; h; h = h->hh.next)
        if (h->text)
            failure_merge(all, faults, h->node, h->text, h->n, &final);
    return s->others - (int)HASH_COUNT(s->heard);
}

/* --- life */

int failure_share_open(struct failure_share **ret, uv_loop_t *loop, const char *run_id, const char *node,
                       const bool *hurry, struct err *e)
{
    struct failure_share *s = calloc(1, sizeof *s);
    if (!s)
        return err_errno(e, ENOMEM, "failure report");
    s->loop = loop;
    s->hurry = hurry;
    const struct leader_link_options link = {.loop = loop,
                                             .command = "RDZV.FAILURE",
                                             .run_id = run_id,
                                             .node = node,
                                             .answer = on_answer,
                                             .lost = on_lost,
                                             .arg = s};
    if (leader_link_open(&s->link, &link) < 0) {
        free(s);
        return err_errno(e, ENOMEM, "failure report");
    }
    uv_timer_init(loop, &s->late);
    s->late.data = s;
    *ret = s;
    return 0;
}

void failure_share_begin_round(struct failure_share *s, int nodes)
{
    s->others = nodes - 1;
    forget(s);
    leader_link_hang_up(s->link);
}

static void on_closed(uv_handle_t *h)
{
    free(h->data);
}

void failure_share_close(struct failure_share *s)
{
    if (!s)
        return;
    failure_share_begin_round(s, 1);
    leader_link_close(s->link);
    uv_close((uv_handle_t *)&s->late, on_closed);
}
