/* The decision log against hostile bytes: whatever comes, a line is refused by name or taken, and a machine that took
 * it all goes on without harm. The first byte picks the job's settings; what follows is the log.
 *
 * With clang and -fsanitize=fuzzer this is a libFuzzer target; with main() below it runs the kept corpus (FUZZ_CORPUS,
 * a folder), then damages logs of real jobs by a seed (FUZZ_RUNS, FUZZ_SEED). */
#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/rdzv/wire/rdzv_wire.h"
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void die(const char *why, const char *detail)
{
    fprintf(stderr, "fuzz_rdzv_log: %s: %s\n", why, detail);
    abort();
}

static struct rdzv_config settings(unsigned choice)
{
    return (struct rdzv_config){.min_nodes = 1 + (int)(choice & 1),
                                .max_nodes = 2 + (int)(choice >> 1 & 3),
                                .max_restarts = (int)(choice >> 3 & 3),
                                .restart_window_ms = choice & 32 ? 5000 : 0,
                                .backoff_ms = choice & 64 ? 100 : 0,
                                .backoff_max_ms = 1000,
                                .backoff_reset_ms = 10000,
                                .order = (enum rdzv_order)(choice % 3),
                                .join_timeout_ms = 20000,
                                .last_call_ms = 1000,
                                .silence_ms = 3000,
                                .kill_ms = 1000,
                                .first_round = 1};
}

/* What a decoder takes, the encoder writes, and the decoder takes again. */
static void decode_line(const char *p, size_t n)
{
    struct rdzv_event ev, ev_again;
    struct rdzv_news news, news_again;
    struct rdzv_config c;
    struct buf b = {0};
    int rc = rdzv_event_decode(p, n, &ev, NULL);
    if (rc == 0 && (rdzv_event_encode(&ev, &b) < 0 || rdzv_event_decode(b.data, b.len, &ev_again, NULL) < 0))
        die("an event does not come back", b.data);
    if (rc != 0 && rc != -EINVAL)
        die("an event is refused oddly", err_name(rc));
    buf_clear(&b);
    rc = rdzv_news_decode(p, n, &news, NULL);
    if (rc == 0 && (rdzv_news_encode(&news, &b) < 0 || rdzv_news_decode(b.data, b.len, &news_again, NULL) < 0))
        die("news do not come back", b.data);
    if (rc != 0 && rc != -EINVAL)
        die("news are refused oddly", err_name(rc));
    buf_clear(&b);
    rdzv_config_defaults(&c); /* what the line does not say */
    if (rdzv_config_decode(p, n, &c, NULL) == 0 &&
        (rdzv_config_encode(&c, &b) < 0 || rdzv_config_decode(b.data, b.len, &c, NULL) < 0))
        die("settings do not come back", b.data);
    buf_free(&b);
}

static void decode_lines(const char *p, size_t n)
{
    for (size_t at = 0; at < n;) {
        const char *end = memchr(p + at, '\n', n - at);
        size_t len = end ? (size_t)(end - (p + at)) : n - at;
        decode_line(p + at, len);
        const char *space = memchr(p + at, ' ', len); /* behind the word that a line of the log begins with */
        if (space)
            decode_line(space + 1, len - (size_t)(space + 1 - (p + at)));
        at += len + 1;
    }
}

struct id {
    char text[RDZV_ID_MAX + 1];
};

static int take_id(void *arg, const struct rdzv_member *m)
{
    snprintf(((struct id *)arg)->text, sizeof((struct id *)arg)->text, "%s", m->node);
    return 1;
}

/* Every event about a node that is there and one that is not. */
static void go_on(struct rdzv *r)
{
    struct rdzv_effects fx = {0};
    struct id first = {"nobody"};
    for (int i = 0; i < 4 * (RDZV_TICK + 1); i++) {
        struct rdzv_event ev = {.kind = (enum rdzv_event_kind)(i * 5 % (RDZV_TICK + 1)), .slots = 1, .node_rank = -1};
        if (i % 2)
            rdzv_members(r, take_id, &first);
        snprintf(ev.node, sizeof ev.node, "%s", i % 2 ? first.text : "new");
        ev.round = rdzv_round(r);
        rdzv_step(r, &ev, 1000000 + i * 700, &fx, NULL);
        for (size_t k = 0; k < fx.n; k++)
            if (fx.v[k].news.kind < RDZV_NEWS_ROUND || fx.v[k].news.kind > RDZV_NEWS_END)
                die("impossible news for", fx.v[k].node);
    }
    rdzv_effects_free(&fx);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (n == 0)
        return 0;
    struct rdzv_config c = settings(data[0]);
    const char *text = (const char *)data + 1;
    struct rdzv *r, *again;
    struct buf whole = {0}, twice = {0};
    struct err e;
    decode_lines(text, n - 1);
    if (rdzv_create(&r, &c, &e) < 0 || rdzv_create(&again, &c, &e) < 0)
        die("no machine", e.text);
    int rc = rdzv_replay(r, text, n - 1, 1000000, &e);
    if (rc != 0 && rc != ERR_CORRUPT)
        die("a log is refused oddly", e.text);
    if (rc == 0) {
        if (rdzv_snapshot(r, 1000000, &whole, &e) < 0 || rdzv_replay(again, whole.data, whole.len, 1000000, &e) < 0 ||
            rdzv_snapshot(again, 1000000, &twice, &e) < 0)
            die("a machine does not come back", e.text);
        if (strcmp(whole.data, twice.data) != 0)
            die("a machine comes back as another", twice.data);
        go_on(r);
    }
    rdzv_destroy(r);
    rdzv_destroy(again);
    buf_free(&whole);
    buf_free(&twice);
    return 0;
}

#ifndef FUZZ_WITH_LIBFUZZER
static int run_corpus(const char *folder)
{
    DIR *d = opendir(folder);
    const struct dirent *f;
    int n = 0;
    while (d && (f = readdir(d))) {
        char path[4096], data[65536];
        snprintf(path, sizeof path, "%s/%s", folder, f->d_name);
        FILE *file = f->d_name[0] == '.' ? NULL : fopen(path, "rb");
        if (!file)
            continue;
        size_t len = fread(data, 1, sizeof data, file);
        fclose(file);
        uint8_t *copy = malloc(len + !len); /* of its exact size: reads beyond it are seen */
        memcpy(copy, data, len);
        LLVMFuzzerTestOneInput(copy, len);
        free(copy);
        n++;
    }
    if (d)
        closedir(d);
    return n;
}

static uint64_t random_state;

static uint64_t draw(uint64_t n)
{
    uint64_t z = (random_state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    return ((z ^ (z >> 27)) >> 16) % n;
}

static uint64_t setting(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text ? strtoull(text, NULL, 10) : otherwise;
}

/* The log of a real job: a snapshot, or every delta. */
static void write_job(struct buf *out)
{
    uint8_t choice = (uint8_t)draw(256);
    struct rdzv_config c = settings(choice);
    struct rdzv_effects fx = {0};
    struct rdzv *r;
    int64_t now = 0;
    int whole = draw(2) == 0;
    buf_clear(out);
    if (buf_add(out, &choice, 1) < 0 || rdzv_create(&r, &c, NULL) < 0)
        die("no memory", "");
    for (uint64_t k = draw(40); k > 0; k--) {
        struct rdzv_event ev = {.kind = (enum rdzv_event_kind)(draw(2) ? RDZV_JOIN : draw(RDZV_TICK + 1)),
                                .slots = 1 + (int)draw(8),
                                .node_rank = (int)draw(4) - 1,
                                .round = rdzv_round(r)};
        snprintf(ev.node, sizeof ev.node, "n%d", (int)draw(5));
        rdzv_step(r, &ev, now += (int64_t)draw(2000), &fx, NULL);
        if (!whole)
            rdzv_delta(r, now, out, NULL);
    }
    if (whole)
        rdzv_snapshot(r, now, out, NULL);
    rdzv_effects_free(&fx);
    rdzv_destroy(r);
}

int main(void)
{
    uint64_t runs = setting("FUZZ_RUNS", 5000);
    struct buf b = {0};
    random_state = setting("FUZZ_SEED", 1);
    const char *folder = getenv("FUZZ_CORPUS");
    int kept = folder ? run_corpus(folder) : 0;
    if (folder && kept == 0)
        die("no corpus in", folder);
    for (uint64_t i = 0; i < runs; i++) {
        write_job(&b);
        for (uint64_t k = draw(5); k > 0; k--)
            b.data[draw(b.len)] = draw(3) ? "0123456789 =%\nnm"[draw(16)] : (char)draw(256);
        LLVMFuzzerTestOneInput((const uint8_t *)b.data, draw(4) ? b.len : 1 + draw(b.len));
    }
    buf_free(&b);
    printf("1..1\nok 1 - %d kept and %llu damaged logs did no harm\n", kept, (unsigned long long)runs);
    return 0;
}
#endif
