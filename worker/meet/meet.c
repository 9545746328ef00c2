/* Opens the store where the ranks of a job meet. */
#include "worker/meet/meet.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/job/env_contract.h"
#include "common/store/store.h"
#include "worker/meet/meet_impl.h"

#define LEFT "crun/left"

static int dial(struct meet *m, const char *url, int64_t deadline, struct err *e)
{
    return store_open(&m->base, url, &(struct store_options){.connect_timeout_ms = clock_left(deadline)}, e);
}

static void make_url(char *url, size_t cap, const char *scheme, const char *host, int port, const char *options)
{
    const bool v6 = strchr(host, ':') && host[0] != '[';
    snprintf(url, cap, "%s://%s%s%s:%d%s", scheme, v6 ? "[" : "", host, v6 ? "]" : "", port, options);
}

/* A store that others use as well, and that may outlive this start of the job. */
static int open_agents(struct meet *m, const struct env_contract *env, const char *url, int64_t deadline, struct err *e)
{
    char prefix[160];
    TRY(dial(m, url, deadline, e));
    TRY(meet_agree(m->base, env->run_id ? env->run_id : "none", m->rank, m->world, prefix, sizeof prefix, deadline, e));
    return store_open_prefix(&m->store, m->base, prefix, e);
}

/* Agents of torch 2.2 and later set TORCH_NCCL_ASYNC_ERROR_HANDLING, older ones NCCL_ASYNC_ERROR_HANDLING: they speak
 * another protocol. */
static int open_torchrun(struct meet *m, const struct env_contract *env, int64_t deadline, struct err *e)
{
    char url[320];
    make_url(url, sizeof url, "tcp", env->master_addr, (int)env->master_port, env->nccl_async ? "" : "?generation=1");
    return open_agents(m, env, url, deadline, e);
}

/* Rank 0 hosts at an address that all know. Port 0: any free one, which ranks on this host ask for (meet_port.c). */
static int open_hosted(struct meet *m, const char *addr, int port, bool one_host, int64_t deadline, struct err *e)
{
    char url[320];
    const struct meet_host_options o = {.loopback = one_host, .tell = port == 0, .port = port};
    if (m->rank == 0)
        TRY(meet_host_open(&m->host, &o, &port, e));
    else if (port == 0)
        TRY(meet_port_ask(&port, deadline, e));
    make_url(url, sizeof url, "resp", m->rank == 0 || one_host ? "127.0.0.1" : addr, port, "");
    TRY(dial(m, url, deadline, e));
    m->store = m->base;
    m->base = NULL;
    m->hosted = true;
    return 0;
}

/* FOLDER may be on another machine, too. */
static int open_file(struct meet *m, const struct env_contract *env, const char *dir, int64_t deadline, struct err *e)
{
    char url[320], host[256] = "127.0.0.1";
    const char *id = env->run_id ? env->run_id : "none";
    const struct meet_host_options o = {.loopback = env->local_world_size == env->world_size};
    int port = 0;
    if (m->rank == 0)
        TRY(meet_host_open(&m->host, &o, &port, e));
    else
        TRY(meet_file_ask(dir, id, m->rank, m->world, host, sizeof host, &port, deadline, e));
    make_url(url, sizeof url, "resp", host, port, "");
    TRY(dial(m, url, deadline, e));
    m->store = m->base;
    m->base = NULL;
    m->hosted = true;
    return m->rank == 0 ? meet_file_host(dir, id, m->world, port, m->store, deadline, e)
                        : meet_file_came(m->store, m->world, deadline, e);
}

static bool is_shared(const char *url)
{
    return strncmp(url, "tcp://", 6) == 0 || strncmp(url, "redis", 5) == 0;
}

static int open_world(struct meet *m, const struct env_contract *env, int64_t deadline, struct err *e)
{
    char host[256];
    int port;
    const bool one_host = env->local_world_size == env->world_size;
    const bool placed = env->master_addr && *env->master_addr && env->master_port > 0;
    if (placed && env->use_agent_store && strcmp(env->use_agent_store, "True") == 0)
        return open_torchrun(m, env, deadline, e);
    if (placed)
        return open_hosted(m, env->master_addr, (int)env->master_port, one_host, deadline, e);
    if (one_host)
        return open_hosted(m, "127.0.0.1", 0, true, deadline, e);
    if (meet_slurm(host, sizeof host, &port))
        return open_hosted(m, host, port, false, deadline, e);
    return err_set(
        e, ERR_USAGE,
        "WORLD_SIZE is %d on several nodes, but nothing tells where rank 0 is: start this program with crun, or set "
        "MASTER_ADDR to rank 0's address and MASTER_PORT to a free port there",
        m->world);
}

int meet_open(struct meet *m, const struct env_contract *env, int64_t timeout_ms, struct err *e)
{
    const int64_t deadline = clock_deadline(timeout_ms);
    const char *url = env->store_url;
    int rc = 0;
    *m = (struct meet){.rank = (int)env->rank, .world = (int)env->world_size};
    if (url && m->world > 1 && strncmp(url, "file://", 7) == 0)
        rc = open_file(m, env, url + 7, deadline, e);
    else if (url && m->world > 1 && is_shared(url))
        rc = open_agents(m, env, url, deadline, e);
    else if (url)
        rc = store_open(&m->store, url, &(struct store_options){.connect_timeout_ms = timeout_ms}, e);
    else if (m->world > 1)
        rc = open_world(m, env, deadline, e);
    if (rc < 0)
        meet_close(m, 0);
    return rc;
}

/* The last of the others says that all have left. */
static void leave(struct meet *m, int64_t timeout_ms)
{
    static const char *const all[] = {LEFT "/all"};
    const int64_t deadline = clock_deadline(timeout_ms);
    int64_t left;
    if (m->rank == 0)
        store_wait(m->store, all, 1, timeout_ms, NULL); /* if they do not come, they are not waited for any longer */
    else if (store_add(m->store, LEFT, 1, &left, timeout_ms, NULL) == 0 && left == m->world - 1)
        store_set(m->store, all[0], "", 0, clock_left(deadline), NULL);
}

void meet_close(struct meet *m, int64_t timeout_ms)
{
    if (m->hosted && timeout_ms > 0)
        leave(m, timeout_ms);
    store_close(m->store);
    store_close(m->base);
    meet_host_close(m->host);
    *m = (struct meet){0};
}
