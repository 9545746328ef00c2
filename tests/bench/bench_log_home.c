/* How long N agents, each with connections of its own, in one process, take to form a job in a Redis or a shared
 * directory: from the first agent's open to the last one's NEWS_ROUND. bench_log_home URL N [RUNS]. Prints bytes too,
 * where the server tells them. */
#include <hiredis/hiredis.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <uv.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/net/redis_link.h"
#include "common/rdzv/wire/rdzv_wire.h"
#include "launcher/rendezvous/rdzv_client.h"

struct agent {
    struct rdzv_client *client;
    char node[RDZV_ID_MAX + 1];
    int rank, told;
    struct bench *b;
};

struct bench {
    uv_loop_t loop;
    struct agent *v;
    int n, told, failed, ended;
    int64_t last;
};

static void on_news(void *arg, const struct rdzv_news *news)
{
    struct agent *a = arg;
    struct err e;
    if (news->kind == RDZV_NEWS_ROUND && !a->told++) {
        a->rank = news->group_rank;
        a->b->told++;
        a->b->last = clock_ns();
    } else if (news->kind == RDZV_NEWS_END && news->exit_code == 0)
        a->b->ended++;
    if (a->b->told == a->b->n && a->b->last)
        for (int i = 0; i < a->b->n && a->b->v[i].told == 1; i++) {
            a->b->v[i].told++;
            a->b->v[i].client->ops->done(a->b->v[i].client, &e);
        }
}

static void on_fence(void *arg, const char *why)
{
    struct agent *a = arg;
    fprintf(stderr, "%s fenced: %s\n", a->node, why);
    a->b->failed++;
}

static void on_failed(void *arg, int code, const char *why)
{
    struct agent *a = arg;
    fprintf(stderr, "%s failed with %d: %s\n", a->node, code, why);
    a->b->failed++;
}

static int check_ranks(const struct bench *b)
{
    char *seen = calloc((size_t)b->n, 1);
    int good = 0;
    for (int i = 0; i < b->n; i++)
        if (b->v[i].rank >= 0 && b->v[i].rank < b->n && !seen[b->v[i].rank])
            seen[b->v[i].rank] = 1, good++;
    free(seen);
    return good == b->n;
}

/* Bytes that the server received and sent so far; -1 where nobody counts them. */
static void server_bytes(const char *url, long long ret[2])
{
    struct redis_link l;
    struct resp_conn c;
    struct err e;
    redisReply *r;
    const char *words[2] = {"INFO", "stats"};
    const size_t lens[2] = {4, 5};
    ret[0] = ret[1] = -1;
    if (strncmp(url, "file:", 5) == 0 || redis_link_parse(&l, url, &e) < 0)
        return;
    resp_init(&c, -1);
    if (redis_link_dial(&l, &c, clock_deadline(5000), &e) == 0 && resp_append(&c, 2, words, lens, &e) == 0 &&
        resp_exchange(&c, 1, &r, clock_deadline(5000), &e) == 0) {
        const char *in = strstr(r->str, "total_net_input_bytes:"), *out = strstr(r->str, "total_net_output_bytes:");
        ret[0] = in ? atoll(in + 22) : -1;
        ret[1] = out ? atoll(out + 23) : -1;
        freeReplyObject(r);
    }
    resp_finish(&c);
    redis_link_finish(&l);
}

static int one_run(const char *url, int n, int run)
{
    struct bench b = {.n = n, .v = calloc((size_t)n, sizeof *b.v)};
    char id[64];
    struct err e = {0};
    long long before[2], after[2];
    server_bytes(url, before);
    snprintf(id, sizeof id, "bench-%d-%lld", run, (long long)clock_ns());
    uv_loop_init(&b.loop);
    int64_t t0 = clock_ns();
    for (int i = 0; i < n; i++) {
        struct agent *a = &b.v[i];
        a->b = &b;
        a->rank = -1;
        snprintf(a->node, sizeof a->node, "node%d", i);
        struct rdzv_client_options o = {.heartbeat_ms = 1000,
                                        .connect_ms = 60000,
                                        .run_id = id,
                                        .endpoint = url,
                                        .node = a->node,
                                        .addr = "127.0.0.1",
                                        .slots = 8,
                                        .node_rank = -1,
                                        .on_news = on_news,
                                        .on_fence = on_fence,
                                        .on_failed = on_failed,
                                        .arg = a};
        rdzv_config_defaults(&o.job);
        o.job.min_nodes = o.job.max_nodes = n;
        if (rdzv_client_elected_ops.open(&a->client, &b.loop, &o, &e) < 0 || a->client->ops->join(a->client, &e) < 0) {
            fprintf(stderr, "agent %d: %s\n", i, e.text);
            return 1;
        }
    }
    int64_t limit = clock_deadline(60000);
    while (b.told < n && !b.failed && clock_left(limit))
        uv_run(&b.loop, UV_RUN_ONCE);
    server_bytes(url, after);
    while (b.ended < n && !b.failed && clock_left(limit))
        uv_run(&b.loop, UV_RUN_ONCE);
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    printf("agents=%d told=%d ended=%d ranks=%s ms=%.1f", n, b.told, b.ended, check_ranks(&b) ? "ok" : "WRONG",
           (double)(b.last - t0) / 1e6);
    if (before[0] >= 0)
        printf(" bytes_in=%lld bytes_out=%lld per_agent=%lld", after[0] - before[0], after[1] - before[1],
               (after[0] - before[0] + after[1] - before[1]) / n);
    printf(" maxrss_kb=%ld\n", u.ru_maxrss);
    fflush(stdout);
    for (int i = 0; i < n; i++)
        b.v[i].client->ops->close(b.v[i].client);
    uv_run(&b.loop, UV_RUN_DEFAULT);
    uv_loop_close(&b.loop);
    free(b.v);
    return b.failed || b.ended < n;
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "usage: bench_log_home URL AGENTS [RUNS]\n");
        return 2;
    }
    int runs = argc > 3 ? atoi(argv[3]) : 1, bad = 0;
    for (int i = 0; i < runs; i++)
        bad |= one_run(argv[1], atoi(argv[2]), i);
    return bad;
}
