/* TCPStore connections against hostile bytes: parser, execution, waits and barriers of four clients in one key-space,
 * without sockets. Whatever comes, nothing crashes, no more memory is taken than was received, what is charged for keys
 * and waiters is given back, and what one client is told does not depend on how its bytes were cut.
 *
 * An input is a list of pieces (clients.h). Clients 0 to 2 have shaken hands already. */
#include "common/base/buf.h"
#include "rendezvousd/tcpstore/tcpstore_internal.h"
#include "tests/fuzz/clients.h"
#include "tests/fuzz/driver.h"
#include <string.h>

enum { PARTIES = 4, INPUT_BYTES = 4096, SPACE_BYTES = 1 << 20 };

static const char handshake[] = "\x00\xce\xf7\x85\x3c";

/* --- four clients */

static void run_together(const uint8_t *data, size_t n)
{
    struct space *sp = clients_begin(SPACE_BYTES);
    struct conn *c[PARTIES];
    size_t fed[PARTIES] = {0};
    for (size_t i = 0; i < PARTIES; i++) {
        c[i] = clients_add(sp);
        if (i < PARTIES - 1)
            clients_feed(c[i], handshake, 5);
    }
    struct piece p;
    for (size_t at = 0; clients_piece(data, n, PARTIES, &at, &p);) {
        struct conn *to = c[p.client];
        clients_feed(to, p.p, p.n);
        fed[p.client] += p.n;
        if (clients_is_open(to) && to->front->memory(to) > 4 * (fed[p.client] + 64) + 64 * sizeof(struct request_arg))
            fuzz_die("memory grew beyond what was received");
    }
    clients_end(c, PARTIES, sp);
}

/* --- one client, cut and uncut */

static void run_alone(const uint8_t *data, size_t n, bool cut, struct buf *out)
{
    struct space *sp = clients_begin(SPACE_BYTES);
    struct conn *c = clients_add(sp);
    clients_tell_one(c, data, n, cut, out);
    clients_end(&c, 1, sp);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct buf whole = {0}, cut = {0};
    if (n == 0 || n > INPUT_BYTES)
        return 0;
    clients_start(NULL, &front_tcpstore);
    run_together(data, n);
    run_alone(data, n, false, &whole);
    run_alone(data, n, true, &cut);
    if (whole.len != cut.len || memcmp(whole.data, cut.data, whole.len) != 0)
        fuzz_die("the replies depend on how the bytes were cut");
    buf_free(&whole);
    buf_free(&cut);
    return 0;
}

#ifndef FUZZ_WITH_LIBFUZZER
static void change_once(struct fuzz_input *in)
{
    static const uint8_t lengths[] = {0, 1, 2, 7, 8, 9, 0x7f, 0x80, 0xff};
    const size_t at = in->n ? fuzz_draw(in->n) : 0;
    const struct fuzz_input *other = fuzz_kept();
    switch (fuzz_draw(5)) {
    case 0:
        if (in->n)
            in->bytes[at] = fuzz_draw(2) ? lengths[fuzz_draw(sizeof lengths)] : (uint8_t)fuzz_draw(256);
        break;
    case 1:
        fuzz_insert(in, at, &(uint8_t){(uint8_t)fuzz_draw(20)}, 1, INPUT_BYTES);
        break;
    case 2:
        if (in->n > 1)
            fuzz_remove(in, at);
        break;
    case 3:
        in->n = at;
        break;
    default:
        fuzz_insert(in, in->n, other->bytes, other->n, INPUT_BYTES);
    }
}

static void change(struct fuzz_input *in)
{
    for (uint64_t k = fuzz_draw(6); k > 0; k--)
        change_once(in);
}

int main(void)
{
    const int rc =
        fuzz_main(&(struct fuzz_plan){.runs = 20000, .change = change, .kept = "leave the connections whole"});
    clients_stop();
    return rc;
}
#endif
