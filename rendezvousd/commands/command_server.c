/* Commands about the server: what it can do, how it is set and how it fares. */
#include "common/base/buf.h"
#include "common/base/clock.h"
#include "rendezvousd/commands/command_impl.h"
#include "rendezvousd/store/glob.h"
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define REDIS_VERSION "7.0.0" /* whose commands these are: libraries look at it */

void command_time(struct conn *c, const struct request *rq)
{
    struct timespec t;
    char text[24];
    (void)rq;
    clock_gettime(CLOCK_REALTIME, &t);
    reply_array(&c->reply, 2);
    reply_bulk(&c->reply, text, (size_t)snprintf(text, sizeof text, "%lld", (long long)t.tv_sec));
    reply_bulk(&c->reply, text, (size_t)snprintf(text, sizeof text, "%ld", t.tv_nsec / 1000));
}

/* There are no replicas to wait for. */
void command_wait(struct conn *c, const struct request *rq)
{
    int64_t replicas, timeout;
    if (!want_i64(c, &rq->argv[1], &replicas))
        return;
    if (!request_i64(rq->argv[2].p, rq->argv[2].n, &timeout))
        reply_error(&c->reply, "ERR timeout is not an integer or out of range");
    else if (timeout < 0)
        reply_error(&c->reply, "ERR timeout is negative");
    else
        reply_int(&c->reply, 0);
}

/* --- COMMAND */

static const struct {
    int first, last, step;
} key_positions[] = {
    [KEYS_ONE >> 8] = {1, 1, 1},       [KEYS_ALL >> 8] = {1, -1, 1}, [KEYS_PAIRS >> 8] = {1, -1, 2},
    [KEYS_BUT_LAST >> 8] = {1, -2, 1}, [KEYS_TWO >> 8] = {1, 2, 1},  [KEYS_SECOND >> 8] = {2, 2, 1},
};

static void describe_flags(struct conn *c, const struct command *cmd)
{
    const char *names[4];
    size_t n = 0;
    if (cmd->flags & (COMMAND_WRITES | COMMAND_GROWS))
        names[n++] = "write";
    else if (cmd->flags & COMMAND_KEYS_MASK)
        names[n++] = "readonly";
    if (cmd->flags & COMMAND_GROWS)
        names[n++] = "denyoom";
    if (cmd->flags & COMMAND_BLOCKS)
        names[n++] = "blocking";
    if (cmd->flags & COMMAND_NO_MULTI)
        names[n++] = "no_multi";
    reply_array(&c->reply, n);
    for (size_t i = 0; i < n; i++)
        reply_status(&c->reply, names[i]);
}

/* Ten elements, as Redis 7; categories, tips, key specifications and subcommands are not told. */
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

static const struct command *command_named(const struct request_arg *name)
{
    const struct command *cmd;
    for (int i = 0; (cmd = command_at(i)); i++)
        if (request_arg_is(name, cmd->name))
            return cmd;
    return NULL;
}

static size_t count_commands(void)
{
    size_t n = 0;
    while (command_at((int)n))
        n++;
    return n;
}

static void describe_all(struct conn *c)
{
    const struct command *cmd;
    reply_array(&c->reply, count_commands());
    for (int i = 0; (cmd = command_at(i)); i++)
        describe(c, cmd);
}

static void command_info_of(struct conn *c, const struct request *rq)
{
    if (rq->argc == 2) {
        describe_all(c);
        return;
    }
    reply_array(&c->reply, rq->argc - 2);
    for (size_t i = 2; i < rq->argc; i++) {
        const struct command *cmd = command_named(&rq->argv[i]);
        if (cmd)
            describe(c, cmd);
        else
            reply_nil(&c->reply);
    }
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

/* docs/protocol.md has them. */
static void command_docs(struct conn *c, const struct request *rq)
{
    (void)rq;
    reply_array(&c->reply, 0);
}

void command_command(struct conn *c, const struct request *rq)
{
    static const struct subcommand v[] = {{"count", 2, command_count},
                                          {"docs", -2, command_docs},
                                          {"info", -2, command_info_of},
                                          {"list", 2, command_list_names}};
    if (rq->argc == 1)
        describe_all(c);
    else
        RUN_SUBCOMMAND(c, rq, "command", v);
}

/* --- CONFIG */

enum { SETTINGS = 16 };

struct setting {
    const char *name;
    char value[32];
};

static size_t settings(const struct server *s, struct setting *v)
{
    size_t n = 0;
    const struct {
        const char *name;
        size_t value;
    } numbers[] = {
        {"maxclients", s->o.max_clients},
        {"maxmemory", s->o.max_memory_bytes},
        {"proto-max-bulk-len", s->o.max_request_bytes},
        {"client-query-buffer-limit", s->o.max_request_bytes},
        {"databases", 1},
        {"timeout", 0},
        {"tcp-keepalive", 60},
    };
    static const char *const words[][2] = {
        {"save", ""},
        {"appendonly", "no"},
        {"maxmemory-policy", "noeviction"},
        {"notify-keyspace-events", ""},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++, n++) {
        v[n].name = numbers[i].name;
        snprintf(v[n].value, sizeof v[n].value, "%zu", numbers[i].value);
    }
    for (size_t i = 0; i < sizeof words / sizeof *words; i++, n++) {
        v[n].name = words[i][0];
        snprintf(v[n].value, sizeof v[n].value, "%s", words[i][1]);
    }
    return n;
}

static bool asked_for(const struct request *rq, const char *name)
{
    uint64_t work = GLOB_WORK;
    for (size_t i = 2; i < rq->argc; i++)
        if (glob_match(rq->argv[i].p, rq->argv[i].n, name, strlen(name), &work))
            return true;
    return false;
}

static void config_get(struct conn *c, const struct request *rq)
{
    struct setting v[SETTINGS];
    size_t n = settings(c->s, v), found = 0;
    for (size_t i = 0; i < n; i++)
        found += asked_for(rq, v[i].name);
    reply_array(&c->reply, 2 * found);
    for (size_t i = 0; i < n; i++) {
        if (!asked_for(rq, v[i].name))
            continue;
        reply_text(&c->reply, v[i].name);
        reply_text(&c->reply, v[i].value);
    }
}

/* Settings are the daemon's options: over the wire each may only be set to what it is. */
static bool may_set(struct conn *c, const struct request_arg *name, const struct request_arg *value)
{
    struct setting v[SETTINGS];
    size_t n = settings(c->s, v);
    for (size_t i = 0; i < n; i++) {
        if (!request_arg_is(name, v[i].name))
            continue;
        if (strlen(v[i].value) == value->n && memcmp(v[i].value, value->p, value->n) == 0)
            return true;
        reply_error(&c->reply, "ERR CONFIG SET failed (possibly related to argument '%s') - can't set immutable config",
                    v[i].name);
        return false;
    }
    reply_error(&c->reply, "ERR Unknown option or number of arguments for CONFIG SET - '%.*s'",
                name->n < 64 ? (int)name->n : 64, name->p);
    return false;
}

static void config_set(struct conn *c, const struct request *rq)
{
    if (rq->argc % 2 != 0) {
        reply_error(&c->reply, "ERR wrong number of arguments for 'config|set' command");
        return;
    }
    for (size_t i = 2; i < rq->argc; i += 2)
        if (!may_set(c, &rq->argv[i], &rq->argv[i + 1]))
            return;
    reply_status(&c->reply, "OK");
}

void command_config(struct conn *c, const struct request *rq)
{
    static const struct subcommand v[] = {{"get", -3, config_get}, {"set", -4, config_set}};
    RUN_SUBCOMMAND(c, rq, "config", v);
}

/* --- INFO */

static void info_server(const struct server *s, const struct server_stats *st, struct buf *b)
{
    int64_t up = (clock_ms() - s->started_ms) / 1000;
    (void)st;
    buf_printf(b,
               "redis_version:" REDIS_VERSION "\r\nrendezvousd_version:" CRUN_VERSION "\r\nredis_mode:standalone\r\n"
               "process_id:%ld\r\nuptime_in_seconds:%lld\r\nuptime_in_days:%lld\r\n",
               (long)getpid(), (long long)up, (long long)up / 86400);
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

static void info_persistence(const struct server *s, const struct server_stats *st, struct buf *b)
{
    (void)s;
    (void)st;
    buf_printf(b, "loading:0\r\naof_enabled:0\r\n");
}

static void info_replication(const struct server *s, const struct server_stats *st, struct buf *b)
{
    (void)s;
    (void)st;
    buf_printf(b, "role:master\r\nconnected_slaves:0\r\n");
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
    {"server", "Server", info_server},       {"clients", "Clients", info_clients},
    {"memory", "Memory", info_memory},       {"persistence", "Persistence", info_persistence},
    {"stats", "Stats", info_stats},          {"replication", "Replication", info_replication},
    {"keyspace", "Keyspace", info_keyspace},
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
