/* Commands about the server: what it supports, and its state. */
#include "common/base/buf.h"
#include "common/base/clock.h"
#include "rendezvousd/commands/command_impl.h"
#include <unistd.h>

#define REDIS_VERSION "7.0.0" /* the version whose commands these are; libraries check it */

/* --- COMMAND */

static const struct {
    int first, last, step;
} key_positions[] = {
    [KEYS_ONE >> 8] = {1, 1, 1},
    [KEYS_ALL >> 8] = {1, -1, 1},
    [KEYS_PAIRS >> 8] = {1, -1, 2},
    [KEYS_BUT_LAST >> 8] = {1, -2, 1},
};

static void describe_flags(struct conn *c, const struct command *cmd)
{
    const char *names[3];
    size_t n = 0;
    if (cmd->flags & (COMMAND_WRITES | COMMAND_GROWS))
        names[n++] = "write";
    else if (cmd->flags & COMMAND_KEYS_MASK)
        names[n++] = "readonly";
    if (cmd->flags & COMMAND_GROWS)
        names[n++] = "denyoom";
    if (cmd->flags & COMMAND_BLOCKS)
        names[n++] = "blocking";
    reply_array(&c->reply, n);
    for (size_t i = 0; i < n; i++)
        reply_status(&c->reply, names[i]);
}

/* Reply with ten elements, as Redis 7; categories, tips, key specifications and subcommands are empty. */
static void describe(struct conn *c, const struct command *cmd)
{
    const int at = (cmd->flags & COMMAND_KEYS_MASK) >> 8;
    reply_array(&c->reply, 10);
    reply_text(&c->reply, cmd->name);
    reply_int(&c->reply, cmd->arity);
    describe_flags(c, cmd);
    reply_int(&c->reply, key_positions[at].first);
    reply_int(&c->reply, key_positions[at].last);
    reply_int(&c->reply, key_positions[at].step);
    for (int i = 0; i < 4; i++)
        reply_array(&c->reply, 0);
}

static size_t count_commands(void)
{
    size_t n = 0;
    while (command_at((int)n))
        n++;
    return n;
}

static void command_list_names(struct conn *c, const struct request *rq)
{
    const struct command *cmd;
    (void)rq;
    reply_array(&c->reply, count_commands());
    for (int i = 0; (cmd = command_at(i)); i++)
        reply_text(&c->reply, cmd->name);
}

static void command_count(struct conn *c, const struct request *rq)
{
    (void)rq;
    reply_int(&c->reply, (int64_t)count_commands());
}

/* reference/protocol.md has them. */
static void command_docs(struct conn *c, const struct request *rq)
{
    (void)rq;
    reply_array(&c->reply, 0);
}

void command_command(struct conn *c, const struct request *rq)
{
    static const struct subcommand v[] = {
        {"count", 2, command_count}, {"docs", -2, command_docs}, {"list", 2, command_list_names}};
    const struct command *cmd;
    if (rq->argc > 1) {
        RUN_SUBCOMMAND(c, rq, "command", v);
        return;
    }
    reply_array(&c->reply, count_commands());
    for (int i = 0; (cmd = command_at(i)); i++)
        describe(c, cmd);
}

/* --- INFO */

static void info_server(const struct server *s, const struct server_stats *st, struct buf *b)
{
    int64_t up = (clock_ms() - s->started_ms) / 1000;
    (void)st;
    buf_printf(b,
               "redis_version:" REDIS_VERSION "\r\nrendezvousd_version:" CRUN_VERSION "\r\nredis_mode:standalone\r\n"
               "process_id:%ld\r\nuptime_in_seconds:%lld\r\n",
               (long)getpid(), (long long)up);
}

static void info_clients(const struct server *s, const struct server_stats *st, struct buf *b)
{
    buf_printf(b, "connected_clients:%zu\r\nmaxclients:%zu\r\nblocked_clients:%zu\r\n", st->clients, s->o.max_clients,
               st->waiters);
}

static void info_memory(const struct server *s, const struct server_stats *st, struct buf *b)
{
    buf_printf(b, "used_memory:%zu\r\nmaxmemory:%zu\r\nmaxmemory_policy:noeviction\r\n", st->memory_bytes,
               s->o.max_memory_bytes);
}

static void info_stats(const struct server *s, const struct server_stats *st, struct buf *b)
{
    (void)s;
    buf_printf(b, "total_connections_received:%llu\r\ntotal_commands_processed:%llu\r\nrejected_connections:%llu\r\n",
               (unsigned long long)st->connections, (unsigned long long)st->commands, (unsigned long long)st->refused);
}

static void info_keyspace(const struct server *s, const struct server_stats *st, struct buf *b)
{
    (void)s;
    if (st->keys)
        buf_printf(b, "db0:keys=%zu,expires=%zu,avg_ttl=0\r\n", st->keys, st->expires);
}

static const struct {
    const char *name, *title;
    void (*write)(const struct server *s, const struct server_stats *st, struct buf *b);
} sections[] = {
    {"server", "Server", info_server}, {"clients", "Clients", info_clients},    {"memory", "Memory", info_memory},
    {"stats", "Stats", info_stats},    {"keyspace", "Keyspace", info_keyspace},
};

static bool wanted(const struct request *rq, const char *section)
{
    for (size_t i = 1; i < rq->argc; i++)
        if (request_arg_is(&rq->argv[i], section) || request_arg_is(&rq->argv[i], "all") ||
            request_arg_is(&rq->argv[i], "default") || request_arg_is(&rq->argv[i], "everything"))
            return true;
    return rq->argc == 1;
}

void command_info(struct conn *c, const struct request *rq)
{
    struct server_stats st;
    struct buf b = {0};
    server_stats(c->s, &st);
    st.keys = keyspace_count(c->space->keys); /* the asker's own */
    st.expires = keyspace_expiring(c->space->keys);
    for (size_t i = 0; i < sizeof sections / sizeof *sections; i++) {
        if (!wanted(rq, sections[i].name))
            continue;
        buf_printf(&b, "%s# %s\r\n", b.len ? "\r\n" : "", sections[i].title);
        sections[i].write(c->s, &st, &b);
    }
    reply_bulk(&c->reply, b.data ? b.data : "", b.len);
    buf_free(&b);
}
