/* Every command under hostile bytes: parser, execution and blocking of three clients in one key-space, without sockets.
 * Whatever comes, nothing crashes, replies are well-formed RESP, what is charged for keys and waiters is given back,
 * the key-space counts what it holds, and what one client is told does not depend on how its bytes were cut.
 *
 * An input is a list of pieces (clients.h). */
#include "common/base/buf.h"
#include "rendezvousd/commands/commands.h"
#include "tests/fuzz/clients.h"
#include "tests/fuzz/driver.h"
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t n, size_t most, unsigned seed);
size_t LLVMFuzzerMutate(uint8_t *data, size_t n, size_t most);

enum { PARTIES = 3, INPUT_BYTES = 2048, SPACE_BYTES = 1 << 18 };

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
        fuzz_die("a reply is not RESP");
}

static void count_key(void *arg, enum key_type type, const char *key, size_t key_len)
{
    (void)type, (void)key, (void)key_len;
    ++*(size_t *)arg;
}

static void check_space(struct space *sp)
{
    size_t n = 0;
    uint64_t cursor = 0;
    keyspace_expire_due(sp->keys, SIZE_MAX);
    do
        cursor = keyspace_scan(sp->keys, cursor, count_key, &n);
    while (cursor);
    if (n != keyspace_count(sp->keys))
        fuzz_die("a scan at rest does not see each key once");
}

static void end(struct conn *const *clients, size_t n, struct space *sp)
{
    check_space(sp);
    for (size_t i = 0; i < n; i++)
        check_replies(clients[i]);
    clients_end(clients, n, sp);
}

static void run_together(const uint8_t *data, size_t n)
{
    struct space *sp = clients_begin(SPACE_BYTES);
    struct conn *c[PARTIES];
    for (size_t i = 0; i < PARTIES; i++)
        c[i] = clients_add(sp);
    struct piece p;
    for (size_t at = 0; clients_piece(data, n, PARTIES, &at, &p);)
        clients_feed(c[p.client], p.p, p.n);
    end(c, PARTIES, sp);
}

/* --- one client, cut and uncut */

static void run_alone(const uint8_t *data, size_t n, bool cut, struct buf *out)
{
    struct space *sp = clients_begin(SPACE_BYTES);
    struct conn *c = clients_add(sp);
    clients_tell_one(c, data, n, cut, out);
    end(&c, 1, sp);
}

/* Commands whose answers differ from run to run. */
static bool repeatable(const uint8_t *data, size_t n)
{
    static const char *const moods[] = {"scan", "info", "client", "use", "auth", "rdzv", "hello"};
    char lower[INPUT_BYTES];
    for (size_t i = 0; i < n; i++)
        lower[i] = (char)tolower(data[i]);
    for (size_t i = 0; i < sizeof moods / sizeof *moods; i++)
        if (memmem(lower, n, moods[i], strlen(moods[i])))
            return false;
    return true;
}

static void show_and_die(const struct buf *a, const struct buf *b)
{
    size_t same = 0;
    while (same < a->len && same < b->len && a->data[same] == b->data[same])
        same++;
    size_t from = same < 100 ? 0 : same - 100;
    fprintf(stderr, "uncut: %.300s\ncut: %.300s\n", a->data + from, b->data + from);
    fuzz_die("the replies depend on how the bytes were cut");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct buf whole = {0}, cut = {0};
    if (n == 0 || n > INPUT_BYTES)
        return 0;
    clients_start(&(struct server_options){.max_request_bytes = 65536}, &front_resp);
    run_together(data, n);
    run_alone(data, n, false, &whole);
    run_alone(data, n, true, &cut);
    if (repeatable(data, n) && (whole.len != cut.len || memcmp(whole.data, cut.data, whole.len) != 0))
        show_and_die(&whole, &cut);
    buf_free(&whole);
    buf_free(&cut);
    return 0;
}

/* --- inputs that look like requests */

static const char *draw_word(void)
{
    static const char *const words[] = {
        "a",    "b",    "l",        "m",       "",     "0",
        "1",    "-1",   "2",        "5",       "100",  "9223372036854775807",
        "x",    "nx",   "xx",       "get",     "ex",   "px",
        "*",    "[a-",  "count",    "match",   "id",   "list",
        "0.",   "1e9",  "setname",  "getname", "docs", "async",
        "sync", "from", "\xff\r\n",
    };
    return words[fuzz_draw(sizeof words / sizeof *words)];
}

/* A piece that is one request, appended. */
static size_t add_request(uint8_t *b, size_t n, size_t most)
{
    char text[256];
    int count = 0;
    while (command_at(count))
        count++;
    const struct command *cmd = command_at((int)fuzz_draw((uint64_t)count));
    size_t argc = (size_t)abs(cmd->arity) + (cmd->arity < 0 ? fuzz_draw(4) : 0), len = 0;
    len += (size_t)snprintf(text, sizeof text, "*%zu\r\n$%zu\r\n%s\r\n", argc, strlen(cmd->name), cmd->name);
    for (size_t i = 1; i < argc && len < 200; i++) {
        const char *w = draw_word();
        len += (size_t)snprintf(text + len, sizeof text - len, "$%zu\r\n%s\r\n", strlen(w), w);
    }
    if (len > 250 || n + 2 + len > most)
        return n;
    b[n] = (uint8_t)fuzz_draw(256);
    b[n + 1] = (uint8_t)len;
    memcpy(b + n + 2, text, len);
    return n + 2 + len;
}

#ifdef FUZZ_WITH_LIBFUZZER
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t n, size_t most, unsigned seed)
{
    fuzz_seed(seed);
    if (fuzz_draw(3) == 0)
        return LLVMFuzzerMutate(data, n, most);
    for (uint64_t k = fuzz_draw(6) + 1; k > 0; k--)
        n = add_request(data, n, most);
    return n ? n : LLVMFuzzerMutate(data, n, most);
}
#else
static void change(struct fuzz_input *in)
{
    in->n = 0;
    for (uint64_t k = fuzz_draw(40) + 1; k > 0; k--)
        in->n = add_request(in->bytes, in->n, INPUT_BYTES);
    if (in->n && fuzz_draw(3) == 0)
        in->bytes[fuzz_draw(in->n)] = (uint8_t)fuzz_draw(256);
}

int main(void)
{
    const int rc = fuzz_main(&(struct fuzz_plan){.runs = 3000, .change = change, .kept = "leave the store whole"});
    clients_stop();
    return rc;
}
#endif
