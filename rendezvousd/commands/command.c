/* Look a request up in the list of commands, check what can be checked for all, and run it. Error texts are Redis'. */
#include "common/base/clock.h"
#include "rendezvousd/commands/command_impl.h"
#include "rendezvousd/store/transaction.h"
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define NAME_MAX_BYTES 16
#define SLOTS 1024 /* several times the number of commands */

static const struct command commands[] = {
#define X(handler, name, arity, flags) {command_##handler, name, arity, flags},
    COMMANDS(X)
#undef X
};

#define X(handler, name, arity, flags) static_assert(sizeof(name) - 1 <= NAME_MAX_BYTES, name);
COMMANDS(X)
#undef X

enum { COUNT = sizeof commands / sizeof *commands };
static_assert(COUNT < SLOTS / 4, "the index is too small");

/* A name in lower case, as two words. */
struct name {
    uint64_t w[2];
};

struct slot {
    struct name name;
    const struct command *command;
};

struct command_index {
    struct slot slots[SLOTS];
};

const struct command *command_at(int i)
{
    return i < COUNT ? &commands[i] : NULL;
}

/* Eight ASCII letters at a time: bit 7 of a byte is set where it lies in A..Z, and moved to the bit that tells the
 * cases apart. */
static inline uint64_t lower(uint64_t w)
{
    const uint64_t ones = 0x0101010101010101u;
    uint64_t from_a = w + (0x80 - 'A') * ones, beyond_z = w + (0x80 - 'Z' - 1) * ones;
    return w | ((from_a & ~beyond_z & 0x80 * ones) >> 2);
}

static inline uint64_t load(const char *p, size_t n) /* n: 4 or 8 */
{
    uint64_t w = 0;
    if (n == 8)
        memcpy(&w, p, 8);
    else
        memcpy(&w, p, 4);
    return w;
}

/* Up to eight bytes, the first one lowest: two loads that overlap instead of a loop. */
static inline uint64_t load_short(const char *p, size_t n)
{
    if (n >= 4)
        return load(p, 4) | load(p + n - 4, 4) << 8 * (n - 4);
    uint64_t w = 0;
    while (n-- > 0)
        w = w << 8 | (unsigned char)p[n];
    return w;
}

static inline bool pack(const char *p, size_t n, struct name *ret)
{
    if (n > NAME_MAX_BYTES)
        return false;
    uint64_t a = n >= 8 ? load(p, 8) : load_short(p, n), b = n > 8 ? load_short(p + 8, n - 8) : 0;
    if ((a | b) & 0x8080808080808080u)
        return false; /* beyond ASCII: no command */
    *ret = (struct name){{lower(a), lower(b)}};
    return true;
}

static size_t first_slot(const struct name *n)
{
    return (n->w[0] * 0x9e3779b97f4a7c15u ^ n->w[1] * 0xd6e8feb86659fd93u) >> 54;
}

int command_index_create(struct command_index **ret)
{
    struct command_index *x = calloc(1, sizeof *x);
    if (!x)
        return -ENOMEM;
    for (int i = 0; i < COUNT; i++) {
        struct name n;
        pack(commands[i].name, strlen(commands[i].name), &n);
        size_t at = first_slot(&n);
        while (x->slots[at].command)
            at = (at + 1) % SLOTS;
        x->slots[at] = (struct slot){n, &commands[i]};
    }
    *ret = x;
    return 0;
}

static const struct command *look_up(const struct command_index *x, const struct request_arg *name)
{
    struct name n;
    if (!pack(name->p, name->n, &n))
        return NULL;
    for (size_t at = first_slot(&n); x->slots[at].command; at = (at + 1) % SLOTS)
        if (x->slots[at].name.w[0] == n.w[0] && x->slots[at].name.w[1] == n.w[1])
            return x->slots[at].command;
    return NULL;
}

/* "unknown command 'x', with args beginning with: 'a' 'b' ", cut where Redis cuts it. */
static void unknown(struct conn *c, const struct request *rq)
{
    char args[160];
    size_t n = 0;
    args[0] = 0;
    for (size_t i = 1; i < rq->argc && n < 128; i++) {
        size_t room = 128 - n, len = strnlen(rq->argv[i].p, rq->argv[i].n < room ? rq->argv[i].n : room);
        args[n++] = '\'';
        memcpy(args + n, rq->argv[i].p, len);
        n += len;
        memcpy(args + n, "' ", 3);
        n += 2;
    }
    int name_len = rq->argv[0].n < 128 ? (int)rq->argv[0].n : 128;
    reply_error(&c->reply, "ERR unknown command '%.*s', with args beginning with: %s", name_len, rq->argv[0].p, args);
}

static size_t request_size(const struct request *rq)
{
    size_t n = 0;
    for (size_t i = 0; i < rq->argc; i++)
        n += rq->argv[i].n;
    return n;
}

static bool has_room(const struct conn *c, const struct command *cmd, const struct request *rq)
{
    return !(cmd->flags & COMMAND_GROWS) || keyspace_fits(c->space->keys, request_size(rq));
}

static bool has_arity(const struct command *cmd, const struct request *rq)
{
    return cmd->arity < 0 ? rq->argc >= (size_t)-cmd->arity : rq->argc == (size_t)cmd->arity;
}

/* What speaks against running it, said to the client; false: nothing. */
static bool refused(struct conn *c, const struct command *cmd, const struct request *rq)
{
    if (!has_arity(cmd, rq))
        reply_error(&c->reply, "ERR wrong number of arguments for '%s' command", cmd->name);
    else if (c->trust == TRUST_NONE && !(cmd->flags & COMMAND_OPEN)) {
        gate_refused(c, "asked for '%s' before it has authenticated", cmd->name);
        reply_error(&c->reply, "NOAUTH Authentication required.");
    } else if (c->trust < TRUST_FULL && (cmd->flags & COMMAND_FULL))
        reply_error(&c->reply, "NOPERM this connection has not authenticated: it may use keys, but not '%s'",
                    cmd->name);
    else if (!has_room(c, cmd, rq))
        reply_error(&c->reply, NO_MEMORY);
    else if (c->subscriber && !(cmd->flags & COMMAND_SUBSCRIBED))
        reply_error(&c->reply,
                    "ERR Can't execute '%s': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are "
                    "allowed in this context",
                    cmd->name);
    else if (c->txn && (cmd->flags & COMMAND_NO_MULTI))
        reply_error(&c->reply, "ERR Command not allowed inside a transaction");
    else
        return false;
    return true;
}

/* An EXEC that is refused ends its transaction, and says so around the reason that stands behind `mark`. */
static void abort_exec(struct conn *c, size_t mark)
{
    static const char before[] = "-ERR ";
    char why[256];
    size_t n = c->reply.out.len - mark;
    if (n < sizeof before + 1 || n >= sizeof why || memcmp(c->reply.out.data + mark, before, sizeof before - 1) != 0)
        return;
    n -= sizeof before - 1 + 2; /* without the line's end */
    memcpy(why, c->reply.out.data + mark + sizeof before - 1, n);
    why[n] = 0;
    c->reply.out.len = mark;
    reply_error(&c->reply, "EXECABORT Transaction discarded because of: %s", why);
    transaction_end(c);
}

/* A client that may not do all, that is subscribed or inside MULTI, or a request with something wrong. */
__attribute__((noinline)) static void run_carefully(struct conn *c, const struct command *cmd, const struct request *rq)
{
    size_t mark = c->reply.out.len;
    if (!cmd || refused(c, cmd, rq)) {
        if (!cmd)
            unknown(c, rq);
        else if (cmd->run == command_exec)
            abort_exec(c, mark);
        transaction_spoil(c->txn);
        return;
    }
    c->last_command = cmd->name;
    if (c->txn && !(cmd->flags & COMMAND_NOW)) {
        if (transaction_queue(c->txn, cmd, rq) < 0) {
            transaction_spoil(c->txn);
            reply_error(&c->reply, NO_MEMORY);
        } else {
            reply_status(&c->reply, "QUEUED");
        }
        return;
    }
    cmd->run(c, rq);
}

/* CLIENT REPLY: what was added since `mark` is taken back. */
static void mute(struct conn *c, size_t mark)
{
    if (c->replies == REPLY_SKIP_NEXT)
        c->replies = REPLY_SKIP; /* the command that asked for it; its own reply is muted, too */
    else if (c->replies == REPLY_SKIP)
        c->replies = REPLY_ON;
    c->reply.out.len = mark;
}

void command_execute(struct conn *c, const struct request *rq)
{
    size_t mark = c->reply.out.len;
    const struct command *cmd = look_up(c->s->index, &rq->argv[0]);
    bool plain = cmd && c->trust == TRUST_FULL && !c->subscriber && !c->txn;
    if (plain && has_arity(cmd, rq) && has_room(c, cmd, rq)) {
        c->last_command = cmd->name;
        cmd->run(c, rq);
    } else {
        run_carefully(c, cmd, rq);
    }
    if (c->replies != REPLY_ON)
        mute(c, mark);
    if (!c->closing && c->space->signalled)
        space_serve(c->space);
}
