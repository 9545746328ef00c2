/* TCPStore connections against hostile bytes: parser, execution, waits and barriers of four clients in one key-space, without sockets. Whatever
 * comes, nothing crashes, no more memory is taken than was received, what is charged for keys and waiters is given back, and what one
 * client is told does not depend on how its bytes were cut.
 *
 * An input is a list of pieces: a byte that names the client (low two bits) and a byte that tells the length, then the bytes. Clients 0 to 2
 * have shaken hands already. With clang and -fsanitize=fuzzer this is a libFuzzer target; with main() below it runs the kept corpus, then
 * mutates it by a seed (FUZZ_RUNS, FUZZ_SEED). FUZZ_CORPUS: the file, a line of hexadecimal digits each. */
#include "common/buf.h"
#include "common/log.h"
#include "rendezvousd/server_impl.h"
#include "rendezvousd/tcpstore_internal.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

enum { PARTIES = 4, INPUT_BYTES = 4096 };

static uv_loop_t loop;
static struct server *server;

static void die(const char *why)
{
    fprintf(stderr, "fuzz_tcpstore: %s\n", why);
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
    c->front = &front_tcpstore;
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

static void end(struct conn *const *clients, size_t n, struct space *sp)
{
    for (size_t i = 0; i < n; i++)
        conn_close(clients[i]);
    uv_run(&loop, UV_RUN_NOWAIT);
    if (waiters_count(sp->waiters) != 0 || sp->barriers)
        die("somebody waits who is gone");
    keyspace_clear(sp->keys);
    if (keyspace_bytes(sp->keys) != 0)
        die("memory is charged to an empty key-space");
    space_release(sp);
}

static struct space *begin(void)
{
    struct space *sp;
    if (space_create(&sp, 1 << 20) < 0)
        die("no key-space");
    return sp;
}

static const char handshake[] = "\x00\xce\xf7\x85\x3c";

/* ---- four clients -------------------------------------------------------------------------------------------------- */

static void run_together(const uint8_t *data, size_t n)
{
    struct space *sp = begin();
    struct conn *c[PARTIES];
    size_t fed[PARTIES] = {0};
    for (size_t i = 0; i < PARTIES; i++) {
        c[i] = open_client(sp);
        if (i < PARTIES - 1)
            feed(c[i], handshake, 5);
    }
    for (size_t at = 0; at + 2 <= n;) {
        const size_t i = data[at] % PARTIES, most = n - at - 2, len = data[at + 1] < most ? data[at + 1] : most;
        feed(c[i], data + at + 2, len);
        at += 2 + len;
        fed[i] += len;
        if (is_open(c[i]) && c[i]->front->memory(c[i]) > 4 * (fed[i] + 64) + 64 * sizeof(struct request_arg))
            die("memory grew beyond what was received");
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

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct buf whole = {0}, cut = {0};
    if (n == 0 || n > INPUT_BYTES)
        return 0;
    if (!server) {
        log_init(LOG_ERROR, "");
        uv_loop_init(&loop);
        if (server_create(&server, &loop, NULL, NULL) < 0)
            die("no server");
    }
    run_together(data, n);
    run_alone(data, n, false, &whole);
    run_alone(data, n, true, &cut);
    if (whole.len != cut.len || memcmp(whole.data, cut.data, whole.len) != 0)
        die("the replies depend on how the bytes were cut");
    buf_free(&whole);
    buf_free(&cut);
    return 0;
}

#ifndef FUZZ_WITH_LIBFUZZER
static uint64_t rng;

static uint64_t draw(uint64_t below) /* xorshift64* */
{
    rng ^= rng >> 12;
    rng ^= rng << 25;
    rng ^= rng >> 27;
    return (rng * 0x2545f4914f6cdd1du >> 11) % below;
}

struct input {
    uint8_t bytes[INPUT_BYTES];
    size_t n;
};

enum { MAX_CORPUS = 4096 };
static struct input *corpus[MAX_CORPUS];
static size_t corpus_n;

static void read_corpus(const char *path)
{
    static char line[2 * INPUT_BYTES + 2];
    FILE *f = fopen(path, "r");
    if (!f)
        die("the corpus cannot be read");
    while (corpus_n < MAX_CORPUS && fgets(line, sizeof line, f)) {
        struct input *in = calloc(1, sizeof *in);
        unsigned byte;
        while (in->n < INPUT_BYTES && sscanf(line + 2 * in->n, "%2x", &byte) == 1)
            in->bytes[in->n++] = (uint8_t)byte;
        corpus[corpus_n++] = in;
    }
    fclose(f);
}

static void mutate(struct input *in)
{
    static const uint8_t lengths[] = {0, 1, 2, 7, 8, 9, 0x7f, 0x80, 0xff};
    for (uint64_t k = draw(6); k > 0; k--) {
        const size_t at = in->n ? draw(in->n) : 0;
        const struct input *other = corpus[draw(corpus_n)];
        switch (draw(5)) {
        case 0:
            if (in->n)
                in->bytes[at] = draw(2) ? lengths[draw(sizeof lengths)] : (uint8_t)draw(256);
            break;
        case 1:
            if (in->n < INPUT_BYTES) {
                memmove(in->bytes + at + 1, in->bytes + at, in->n - at);
                in->bytes[at] = (uint8_t)draw(20);
                in->n++;
            }
            break;
        case 2:
            if (in->n > 1) {
                memmove(in->bytes + at, in->bytes + at + 1, in->n - at - 1);
                in->n--;
            }
            break;
        case 3:
            in->n = at;
            break;
        default:
            if (in->n + other->n <= INPUT_BYTES) {
                memcpy(in->bytes + in->n, other->bytes, other->n);
                in->n += other->n;
            }
        }
    }
}

static uint64_t env(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text && *text ? strtoull(text, NULL, 10) : otherwise;
}

int main(void)
{
    const uint64_t runs = env("FUZZ_RUNS", 20000), seed = env("FUZZ_SEED", 1);
    const char *path = getenv("FUZZ_CORPUS");
    rng = seed | 1;
    read_corpus(path ? path : "tests/fuzz/tcpstore.corpus");
    for (size_t i = 0; i < corpus_n; i++)
        LLVMFuzzerTestOneInput(corpus[i]->bytes, corpus[i]->n);
    for (uint64_t i = 0; i < runs; i++) {
        static struct input in;
        in = *corpus[draw(corpus_n)];
        mutate(&in);
        LLVMFuzzerTestOneInput(in.bytes, in.n);
    }
    for (size_t i = 0; i < corpus_n; i++)
        free(corpus[i]);
    server_close(server, NULL, NULL);
    uv_run(&loop, UV_RUN_DEFAULT);
    uv_loop_close(&loop);
    printf("1..1\nok 1 - %zu kept and %llu new hostile inputs leave the connections whole (seed %llu)\n", corpus_n,
           (unsigned long long)runs, (unsigned long long)seed);
    return 0;
}
#endif
