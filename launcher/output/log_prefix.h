/* The prefix of a worker's line on the console: torchrun's template, with more macros. Pure. */
#ifndef CRUN_LAUNCHER_LOG_PREFIX_H
#define CRUN_LAUNCHER_LOG_PREFIX_H

#include <stdbool.h>
#include <stdint.h>

struct buf;
struct err;

struct log_prefix_values {
    const char *role_name, *host, *stream, *run_id, *time;
    int local_rank, rank, rank_in_role, group_rank;
    uint64_t round;
};

/* Macros as $name or ${name}; $$ is a dollar sign. */
#define LOG_PREFIX_MACROS(X)                                                                                           \
    X(role_name, "%s", v->role_name)                                                                                   \
    X(local_rank, "%d", v->local_rank)                                                                                 \
    X(rank, "%d", v->rank)                                                                                             \
    X(rank_in_role, "%d", v->rank_in_role)                                                                             \
    X(group_rank, "%d", v->group_rank)                                                                                 \
    X(hostname, "%s", v->host)                                                                                         \
    X(host, "%s", v->host)                                                                                             \
    X(time, "%s", v->time)                                                                                             \
    X(stream, "%s", v->stream)                                                                                         \
    X(round, "%llu", (unsigned long long)v->round)                                                                     \
    X(run_id, "%s", v->run_id)

#define LOG_PREFIX_DEFAULT "[${role_name}${local_rank}]: "

/* ERR_USAGE names the macro that is unknown. */
int log_prefix_check(const char *text, struct err *e);
bool log_prefix_uses_time(const char *text);
/* Render a template, appending to *out. 0, or an error of buf_add(). */
int log_prefix_render(const char *text, const struct log_prefix_values *v, struct buf *out);

#endif
