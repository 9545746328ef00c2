/* Every command under hostile bytes: parser, execution, blocking, transactions and subscriptions of three clients in one key-space, without
 * sockets. Whatever comes, nothing crashes, replies are well-formed RESP, what is charged for keys and waiters is given back, the key-space counts
 * what it holds, and what one client is told does not depend on how its bytes were cut.
 *
 * An input is a list of pieces: a byte that names the client (modulo three) and a byte that tells the length, then the bytes. With clang and
 * -fsanitize=fuzzer this is a libFuzzer target; with main() below it runs the kept corpus, then goes on by a seed (FUZZ_RUNS, FUZZ_SEED).
 * FUZZ_CORPUS: the file, a line of hexadecimal digits each. */
#include "common/buf.h"
#include "common/log.h"
#include "rendezvousd/commands.h"
#include "rendezvousd/list.h"
#include "rendezvousd/server_impl.h"
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t n, size_t most, unsigned seed);
size_t LLVMFuzzerMutate(uint8_t *data, size_t n, size_t most);

enum { PARTIES = 3, INPUT_BYTES = 2048 };

static uv_loop_t loop;
static struct server *server;

static void die(const char *why)
{
    fprintf(stderr, "fuzz_command: %s\n", why);
    abort();
}

/* ---- a connection without a socket: it seems to be writing all the time, so replies pile up where we look at them --- */

static struct conn *open_client(struct space *sp)
{
    struct conn *c = calloc(1, sizeof *c);
    c->s = server;
    uv_tcp_init(&loop, &c->tcp);
    uv_timer_init(&loop, &c->timer);
    c->tcp.data = c->timer.data = c;
    c->open_handles = 2;
    buf_init(&c->reply.out, server->o.max_output_bytes);
    c->space = space_hold(sp);
    c->trust = TRUST_FULL;
    c->writing = c->reading = true;
    server->open_handles++;
    server->clients++;
    DL_APPEND(server->conns, c);
    c->front = &front_resp;
    if (c->front->open(c) < 0)
        die("a front end cannot be opened");
    return c;
}

static bool is_open(const struct conn *c)
{
    return !c->closing && !c->last_words;
}

static void feed(struct conn *c, const void *data, size_t n)
{
    if (!is_open(c))
        return;
    if (c->front->feed(c, data, n) < 0)
        die("a piece within the limits was not taken");
    conn_push(c);
    conn_drain_ready(server);
}

/* One reply; NULL if it is none. */
static const char *skip_reply(const char *p, const char *end, int depth)
{
    const char *nl = p < end ? memchr(p, '\n', (size_t)(end - p)) : NULL;
    if (!nl || nl == p || nl[-1] != '\r' || depth > 4)
        return NULL;
    long n = strtol(p + 1, NULL, 10);
    switch (*p) {
    case '+':
    case '-':
    case ':':
        return nl + 1;
    case '$':
        if (n < 0)
            return n == -1 ? nl + 1 : NULL;
        return end - nl - 1 >= n + 2 && memcmp(nl + 1 + n, "\r\n", 2) == 0 ? nl + 1 + n + 2 : NULL;
    case '*':
        if (n < -1)
            return NULL;
        for (p = nl + 1; p && n > 0; n--)
            p = skip_reply(p, end, depth + 1);
        return p;
    default:
        return NULL;
    }
}

static void check_replies(const struct conn *c)
{
    if (!c->reply.out.len || c->closing)
        return;
    const char *p = c->reply.out.data, *end = p + c->reply.out.len;
    while (p && p < end)
        p = skip_reply(p, end, 0);
    if (!p)
        die("a reply is not RESP");
}

static void count_key(void *arg, enum key_type type, const char *key, size_t key_len)
{
    struct key *en;
    struct space *sp = ((void **)arg)[0];
    if (type == KEY_LIST && (keyspace_list(sp->keys, key, key_len, false, &en) < 0 || key_list(en)->n == 0))
        die("an empty list is kept");
    ++*(size_t *)((void **)arg)[1];
}

static void check_space(struct space *sp)
{
    size_t n = 0;
    void *arg[] = {sp, &n};
    keyspace_expire_due(sp->keys, SIZE_MAX);
    keyspace_walk(sp->keys, count_key, arg);
    if (n != keyspace_count(sp->keys))
        die("the number of keys is wrong");
    n = 0;
    uint64_t cursor = 0;
    do
        cursor = keyspace_scan(sp->keys, cursor, count_key, arg);
    while (cursor);
    if (n != keyspace_count(sp->keys))
        die("a scan at rest does not see each key once");
}

static void end(struct conn *const *clients, size_t n, struct space *sp)
{
    check_space(sp);
    for (size_t i = 0; i < n; i++) {
        check_replies(clients[i]);
        conn_close(clients[i]);
    }
    uv_run(&loop, UV_RUN_NOWAIT);
    if (waiters_count(sp->waiters) != 0)
        die("somebody waits who is gone");
    keyspace_clear(sp->keys);
    if (keyspace_bytes(sp->keys) != 0)
        die("memory is charged to an empty key-space");
    space_release(sp);
}

static struct space *begin(void)
{
    struct space *sp;
    if (space_create(&sp, 1 << 18) < 0)
        die("no key-space");
    return sp;
}

static void run_together(const uint8_t *data, size_t n)
{
    struct space *sp = begin();
    struct conn *c[PARTIES];
    for (size_t i = 0; i < PARTIES; i++)
        c[i] = open_client(sp);
    for (size_t at = 0; at + 2 <= n;) {
        const size_t i = data[at] % PARTIES, most = n - at - 2, len = data[at + 1] < most ? data[at + 1] : most;
        feed(c[i], data + at + 2, len);
        at += 2 + len;
    }
    end(c, PARTIES, sp);
}

/* ---- one client, cut and uncut ------------------------------------------------------------------------------------- */

static void run_alone(const uint8_t *data, size_t n, bool cut, struct buf *out)
{
    struct space *sp = begin();
    struct conn *c = open_client(sp);
    for (size_t at = 0, i = 0; at < n; i++) {
        size_t len = cut ? data[i % n] % 61u + 1 : n;
        len = len < n - at ? len : n - at;
        feed(c, data + at, len);
        at += len;
    }
    buf_add(out, c->reply.out.data, c->reply.out.len);
    buf_addstr(out, is_open(c) ? c->blocked ? "waits" : "open" : "closed");
    end(&c, 1, sp);
}

/* Commands whose answers differ from run to run. */
static bool repeatable(const uint8_t *data, size_t n)
{
    static const char *const moods[] = {"time",   "random", "scan", "info", "client", "expireat", "xat",
                                        "memory", "use",    "auth", "rdzv", "hello",  "stats"};
    char lower[INPUT_BYTES];
    for (size_t i = 0; i < n; i++)
        lower[i] = (char)tolower(data[i]);
    for (size_t i = 0; i < sizeof moods / sizeof *moods; i++)
        if (memmem(lower, n, moods[i], strlen(moods[i])))
            return false;
    return !memmem(lower, n, "expire", 6) || !memmem(lower, n, "at", 2);
}

static void show_and_die(const struct buf *a, const struct buf *b)
{
    size_t same = 0;
    while (same < a->len && same < b->len && a->data[same] == b->data[same])
        same++;
    size_t from = same < 100 ? 0 : same - 100;
    fprintf(stderr, "uncut: %.300s\ncut: %.300s\n", a->data + from, b->data + from);
    die("the replies depend on how the bytes were cut");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct buf whole = {0}, cut = {0};
    if (n == 0 || n > INPUT_BYTES)
        return 0;
    if (!server) {
        log_init(LOG_ERROR, "");
        uv_loop_init(&loop);
        if (server_create(&server, &loop, &(struct server_options){.max_request_bytes = 65536}, NULL) < 0)
            die("no server");
    }
    run_together(data, n);
    run_alone(data, n, false, &whole);
    run_alone(data, n, true, &cut);
    if (repeatable(data, n) && (whole.len != cut.len || memcmp(whole.data, cut.data, whole.len) != 0))
        show_and_die(&whole, &cut);
    buf_free(&whole);
    buf_free(&cut);
    return 0;
}

/* ---- inputs that look like requests -------------------------------------------------------------------------------- */

static uint64_t rng = 1;

static uint64_t draw(uint64_t below) /* xorshift64* */
{
    rng ^= rng >> 12;
    rng ^= rng << 25;
    rng ^= rng >> 27;
    return (rng * 0x2545f4914f6cdd1du >> 11) % below;
}

static const char *draw_word(void)
{
    static const char *const words[] = {
        "a",      "b",        "l",      "m",       "",        "0",
        "1",      "-1",       "2",      "5",       "100",     "9223372036854775807",
        "x",      "nx",       "xx",     "get",     "ex",      "px",
        "exat",   "gt",       "lt",     "keepttl", "left",    "right",
        "*",      "[a-",      "count",  "match",   "type",    "list",
        "id",     "kill",     "reply",  "off",     "skip",    "on",
        "0.",     "1e9",      "before", "after",   "persist", "channels",
        "numsub", "encoding", "usage",  "setname", "string",  "\xff\r\n",
    };
    return words[draw(sizeof words / sizeof *words)];
}

/* A piece that is one request, appended. */
static size_t add_request(uint8_t *b, size_t n, size_t most)
{
    char text[256];
    int count = 0;
    while (command_at(count))
        count++;
    const struct command *cmd = command_at((int)draw((uint64_t)count));
    size_t argc = (size_t)abs(cmd->arity) + (cmd->arity < 0 ? draw(4) : 0), len = 0;
    len += (size_t)snprintf(text, sizeof text, "*%zu\r\n$%zu\r\n%s\r\n", argc, strlen(cmd->name), cmd->name);
    for (size_t i = 1; i < argc && len < 200; i++) {
        const char *w = draw_word();
        len += (size_t)snprintf(text + len, sizeof text - len, "$%zu\r\n%s\r\n", strlen(w), w);
    }
    if (len > 250 || n + 2 + len > most)
        return n;
    b[n] = (uint8_t)draw(256);
    b[n + 1] = (uint8_t)len;
    memcpy(b + n + 2, text, len);
    return n + 2 + len;
}

#ifdef FUZZ_WITH_LIBFUZZER
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t n, size_t most, unsigned seed)
{
    rng = seed | 1;
    if (draw(3) == 0)
        return LLVMFuzzerMutate(data, n, most);
    for (uint64_t k = draw(6) + 1; k > 0; k--)
        n = add_request(data, n, most);
    return n ? n : LLVMFuzzerMutate(data, n, most);
}
#else
static uint64_t env(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text && *text ? strtoull(text, NULL, 10) : otherwise;
}

static size_t run_corpus(const char *path)
{
    static char line[2 * INPUT_BYTES + 2];
    static uint8_t bytes[INPUT_BYTES];
    size_t inputs = 0;
    FILE *f = path ? fopen(path, "r") : NULL;
    while (f && fgets(line, sizeof line, f)) {
        size_t n = 0;
        unsigned v;
        for (const char *p = line; n < INPUT_BYTES && sscanf(p, "%2x", &v) == 1; p += 2)
            bytes[n++] = (uint8_t)v;
        LLVMFuzzerTestOneInput(bytes, n);
        inputs++;
    }
    if (f)
        fclose(f);
    return inputs;
}

int main(void)
{
    static uint8_t b[INPUT_BYTES];
    uint64_t runs = env("FUZZ_RUNS", 3000), seed = env("FUZZ_SEED", 1);
    size_t kept = run_corpus(getenv("FUZZ_CORPUS"));
    rng = seed | 1;
    for (uint64_t i = 0; i < runs; i++) {
        size_t n = 0;
        for (uint64_t k = draw(40) + 1; k > 0; k--)
            n = add_request(b, n, sizeof b);
        if (n && draw(3) == 0)
            b[draw(n)] = (uint8_t)draw(256);
        LLVMFuzzerTestOneInput(b, n);
    }
    printf("1..1\nok 1 - %zu kept and %llu drawn inputs leave the store whole (seed %llu)\n", kept,
           (unsigned long long)runs, (unsigned long long)seed);
    return 0;
}
#endif
