/* Makes ranks of this process by --procs, --gpus and --nodes. */
#include "worker/meet/ranks.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/args/args.h"
#include "common/base/err.h"
#include "common/job/env_contract.h"
#include "worker/config/config.h"

enum { GPUS_MAX = 1024 };

static const char *lookup(const char *name)
{
    const char *v = getenv(name);
    return v && *v ? v : NULL;
}

/* "0,1,3" is three devices. */
static int count_gpus(const char *list, int *ret, struct err *e)
{
    int64_t seen[GPUS_MAX];
    int n = 0;
    for (const char *at = list; at; n++) {
        char one[24];
        const char *comma = strchr(at, ',');
        snprintf(one, sizeof one, "%.*s", comma && comma - at < 20 ? (int)(comma - at) : 20, at);
        if (n == GPUS_MAX)
            return err_set(e, ERR_USAGE, "--gpus: more than %d devices", GPUS_MAX);
        TRY(parse_i64(one, "--gpus", 0, 65535, &seen[n], e));
        for (int i = 0; i < n; i++)
            if (seen[i] == seen[n])
                return err_set(e, ERR_USAGE, "--gpus %s: device %d is named twice", list, (int)seen[n]);
        at = comma ? comma + 1 : NULL;
    }
    *ret = n;
    return 0;
}

static int count_procs(struct ranks *r, const struct train_config *cfg, struct err *e)
{
    r->procs = cfg->procs ? (int)cfg->procs : 1;
    if (!cfg->gpus)
        return 0;
    TRY(count_gpus(cfg->gpus, &r->procs, e));
    if (cfg->procs && cfg->procs != r->procs)
        return err_set(e, ERR_USAGE, "--gpus %s names %d devices, --procs asks for %d processes: leave one of them out",
                       cfg->gpus, r->procs, (int)cfg->procs);
    return 0;
}

/* "HOST:PORT", "[ADDRESS]:PORT" */
static int read_tcp(struct ranks *r, const char *url, struct err *e)
{
    const char *at = url + strlen("tcp://"), *colon = strrchr(at, ':');
    int64_t port;
    if (!colon || colon == at || (size_t)(colon - at) >= sizeof r->host)
        return err_set(e, ERR_USAGE, "--dist-url %s: expected tcp://HOST:PORT of rank 0", url);
    TRY(parse_i64(colon + 1, "the port of --dist-url", 1, 65535, &port, e));
    const bool bracket = at[0] == '[' && colon[-1] == ']';
    snprintf(r->host, sizeof r->host, "%.*s", (int)(colon - at) - 2 * bracket, at + bracket);
    r->port = (int)port;
    const int first = atoi(r->host); /* of a dotted quad; of a name it is 0 */
    if (first >= 224 && first <= 239 && strspn(r->host, "0123456789.") == strlen(r->host))
        return err_set(e, ERR_USAGE, "--dist-url %s: a multicast address is nobody's; give the address of rank 0", url);
    return 0;
}

/* torch's env://: where rank 0 is stands in MASTER_ADDR and MASTER_PORT. */
static int read_env(struct ranks *r, struct err *e)
{
    const char *addr = lookup("MASTER_ADDR"), *port = lookup("MASTER_PORT");
    int64_t p;
    if (r->nodes > 1 && (!addr || !port))
        return err_set(e, ERR_USAGE, "--dist-url env:// on %d nodes: MASTER_ADDR and MASTER_PORT are not both set",
                       r->nodes);
    if (!addr || !port)
        return 0;
    TRY(parse_i64(port, "MASTER_PORT", 1, 65535, &p, e));
    snprintf(r->host, sizeof r->host, "%s", addr);
    r->port = (int)p;
    return 0;
}

static bool begins(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

static int read_url(struct ranks *r, const struct train_config *cfg, struct err *e)
{
    const char *url = cfg->dist_url;
    if (!url)
        return 0;
    if (begins(url, "env://"))
        return read_env(r, e);
    if (begins(url, "tcp://"))
        return read_tcp(r, url, e);
    if (!begins(url, "file:///") && !begins(url, "redis://") && !begins(url, "rediss://") &&
        !begins(url, "redis+sentinel://") && !begins(url, "rediss+sentinel://"))
        return err_set(
            e, ERR_USAGE,
            "--dist-url %s: expected env://, tcp://HOST:PORT, redis://HOST:PORT (rediss://, redis+sentinel://, "
            "rediss+sentinel://) or file:///FOLDER",
            url);
    r->store = url;
    return 0;
}

/* A launcher has made the ranks; two who count them never agree. */
static int check_launched(const struct ranks *r, struct err *e)
{
    struct env_contract env;
    TRY(env_contract_read(&env, e));
    const bool started = lookup(ENV_PAGE_FD) || lookup("LOCAL_RANK") || env.world_size > 1;
    if (started && (r->procs > 1 || r->nodes > 1))
        return err_set(
            e, ERR_USAGE,
            "a launcher has started this as rank %d of %d: let it start all %d processes, and leave out what "
            "counts devices and machines here",
            (int)env.rank, (int)env.world_size, r->procs * r->nodes);
    return started;
}

static int check_nodes(const struct ranks *r, const struct train_config *cfg, struct err *e)
{
    if (r->node_rank >= r->nodes)
        return err_set(e, ERR_USAGE, "machine %d of %d: machines are counted from 0 to %d", r->node_rank, r->nodes,
                       r->nodes - 1);
    if (r->nodes > 1 && cfg->data_parallel)
        return err_set(e, ERR_USAGE, "--data-parallel is for the devices of one machine, not for %d machines",
                       r->nodes);
    if (r->nodes > 1 && !r->port && !r->store)
        return err_set(
            e, ERR_USAGE,
            "%d machines need a place to meet: --dist-url tcp://HOST:PORT of the first one, redis://HOST:PORT "
            "or file:///FOLDER that all of them see",
            r->nodes);
    if (r->store && r->nodes > 1 && !cfg->run_id)
        return err_set(e, ERR_USAGE,
                       "%s may serve several runs: give --run-id, the same on all machines and another for every run",
                       r->store);
    return 0;
}

int ranks_find(struct ranks *ret, const struct train_config *cfg, struct err *e)
{
    struct ranks r = {
        .nodes = cfg->nodes ? (int)cfg->nodes : 1, .node_rank = (int)cfg->node_rank, .run_id = cfg->run_id};
    r.asked = cfg->procs || cfg->gpus || cfg->nodes || cfg->dist_url || cfg->run_id || cfg->node_rank;
    *ret = r;
    if (!r.asked)
        return 0;
    TRY(count_procs(&r, cfg, e));
    int launched = check_launched(&r, e);
    TRY(launched);
    if (launched) {
        ret->asked = false; /* it also says where to meet */
        return 0;
    }
    TRY(read_url(&r, cfg, e));
    TRY(check_nodes(&r, cfg, e));
    *ret = r;
    return 0;
}

static void set_variable(const char *name, int value)
{
    char text[16];
    snprintf(text, sizeof text, "%d", value);
    setenv(name, text, 1);
}

void ranks_enter(const struct ranks *r, int local_rank)
{
    /* what only others' ranks mean by them, or what would lead elsewhere */
    static const char *const foreign[] = {
        "CRUN_STORE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE", "PMIX_NAMESPACE", "SLURM_STEP_ID"};
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++)
        unsetenv(foreign[i]);
    set_variable("RANK", r->node_rank * r->procs + local_rank);
    set_variable("WORLD_SIZE", r->nodes * r->procs);
    set_variable("LOCAL_RANK", local_rank);
    set_variable("LOCAL_WORLD_SIZE", r->procs);
    set_variable("GROUP_RANK", r->node_rank);
    set_variable("GROUP_WORLD_SIZE", r->nodes);
    if (r->run_id)
        setenv("TORCHELASTIC_RUN_ID", r->run_id, 1);
    if (r->store && r->nodes * r->procs > 1)
        setenv("CRUN_STORE", r->store, 1);
    if (r->port) {
        setenv("MASTER_ADDR", r->host, 1);
        set_variable("MASTER_PORT", r->port);
    }
}
