/* Chooses what each worker of this node gets: cores, devices, cgroup, environment, arguments (worker_setup.h). */
#include "launcher/agent/worker_setup.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/err.h"
#include "common/base/log.h"
#include "common/crun/crun_page.h"
#include "common/include/crun.h"
#include "common/job/env_contract.h"
#include "launcher/agent/member.h"
#include "launcher/agent/round.h"
#include "launcher/agent/run.h"
#include "launcher/base/program.h"
#include "launcher/base/virtual_rank.h"
#include "launcher/config/config.h"
#include "launcher/guard/cgroup.h"
#include "launcher/guard/guardian.h"
#include "launcher/output/logmux.h"
#include "launcher/place/placement.h"
#include "launcher/witness/flight.h"
#include "launcher/witness/ras_addr.h"
#include "launcher/workers/spawn_env.h"

extern char **environ;

struct worker_setup {
    struct placement placement;
    struct cgroup *cgroup; /* NULL: none */
    bool sets_threads;     /* it sets OMP_NUM_THREADS to a worker's share of the cores */
    const char *nccl_async;
    char error_file[2304];
    char page_variable[32], omp_variable[32], ras_variable[sizeof RAS_VARIABLE + RAS_ADDRESS_MAX];
    char dump_variable[sizeof FLIGHT_DUMP_VARIABLE + 2176];
    bool gives_ras, gives_dumps;
    char ras_list[RAS_ADDRESS_MAX];
};

/* --- environment and arguments */

/* Name the error record of a spare. It has no rank yet, and in the next round another node may have this group rank. */
static void name_spare(const struct run *r, int spare, char *path, size_t cap)
{
    snprintf(path, cap, "%s/spare-%d-%d.error.json", r->logs.round, round_news(r)->group_rank, spare);
}

/* The folder of an earlier round may contain the record of another process: append the number of the new round. */
static void name_after_round(char *path, size_t cap, uint64_t round)
{
    const size_t n = strlen(path);
    snprintf(path + n, cap - n, ".round-%llu", (unsigned long long)round);
}

const char *worker_setup_error_path(void *arg, int local, int spare)
{
    struct run *r = arg;
    const struct rdzv_news *n = round_news(r);
    char *path = r->setup->error_file;
    const size_t cap = sizeof r->setup->error_file;
    if (r->logs.root[0]) {
        if (spare >= 0)
            name_spare(r, spare, path, cap);
        else
            log_layout_path(&r->logs, local, n->rank_base + local, LOG_FILE_ERROR, path);
        if (!round_has_own_output(r))
            name_after_round(path, cap, n->round);
    } else if (r->scratch[0] && logmux_has_scratch(r->mux)) {
        const bool is_spare = spare >= 0;
        snprintf(path, cap, "%s/round-%llu-%s-%d.error.json", r->scratch, (unsigned long long)n->round,
                 is_spare ? "spare" : "rank", is_spare ? spare : n->rank_base + local);
    } else {
        return NULL;
    }
    return path;
}

static const char *reason_text(enum rdzv_reason why)
{
    return why == RDZV_WHY_START ? "start" : crun_stop_reason_name((enum crun_stop_reason)why);
}

static struct env_contract contract(struct run *r, int local, const char *error_path)
{
    const struct config *c = r->config;
    const struct rdzv_news *n = round_news(r);
    const struct member_leader leader = member_leader(r, n);
    const bool is_spare = local < 0;
    const int rank = is_spare ? -1 : n->rank_base + local, previous = is_spare ? -1 : round_previous_base(r);
    return (struct env_contract){.rank = rank,
                                 .world_size = n->world_size,
                                 .local_rank = is_spare                ? -1
                                               : c->virtual_local_rank ? 0
                                                                       : local,
                                 .local_world_size = c->nproc,
                                 .group_rank = n->group_rank,
                                 .group_world_size = n->group_world,
                                 .role_rank = is_spare ? -1 : n->role_base + local,
                                 .role_world_size = n->role_world,
                                 .master_port = leader.port,
                                 .restart_count = n->restart_count,
                                 .max_restarts = c->max_restarts,
                                 .round = (int64_t)n->round,
                                 .prev_rank = previous < 0 ? -1 : previous + local,
                                 .global_restarts = n->restart_count,
                                 .role_name = c->role,
                                 .master_addr = leader.host,
                                 .run_id = c->run_id,
                                 .use_agent_store = "True",
                                 /* "" rather than unset: if crun is a worker itself, its workers would inherit its
                                  * own path */
                                 .error_file = error_path ? error_path : "",
                                 .signals = c->stops.handled.names,
                                 .nccl_async = r->setup->nccl_async,
                                 .store_url = member_store_url(r),
                                 .node_id = r->node,
                                 .restart_reason = reason_text(n->why)};
}

static int least_threads(const struct placement *p)
{
    int least = placement_threads(p, 0);
    for (int i = 1; i < p->workers; i++) {
        const int n = placement_threads(p, i);
        least = n < least ? n : least;
    }
    return least;
}

int worker_setup_env(void *arg, int local, int page_fd, const char *error_path, char ***ret, struct err *e)
{
    struct run *r = arg;
    struct worker_setup *s = r->setup;
    const struct env_contract c = contract(r, local, error_path);
    const char *extra[8] = {s->page_variable};
    size_t n_extra = 1;
    const bool is_spare = local < 0; /* a spare gets the share and the devices of a place that is not known yet */
    snprintf(s->omp_variable, sizeof s->omp_variable, "OMP_NUM_THREADS=%d",
             is_spare ? least_threads(&s->placement) : placement_threads(&s->placement, local));
    snprintf(s->page_variable, sizeof s->page_variable, ENV_PAGE_FD "=%d", page_fd);
    if (s->sets_threads)
        extra[n_extra++] = s->omp_variable;
    if (s->gives_dumps && r->logs.root[0]) {
        snprintf(s->dump_variable, sizeof s->dump_variable, FLIGHT_DUMP_VARIABLE "=%s/nccl-trace-rank-", r->logs.round);
        extra[n_extra++] = s->dump_variable;
    }
    if (s->gives_ras && !is_spare) { /* of whose place nothing is known yet */
        char address[RAS_ADDRESS_MAX];
        snprintf(s->ras_variable, sizeof s->ras_variable, RAS_VARIABLE "=%s", ras_address(getpid(), local, address));
        extra[n_extra++] = s->ras_variable;
    }
    if (is_spare)
        extra[n_extra++] = ENV_SPARE "=1";
    struct virtual_rank device;
    if (r->config->virtual_local_rank) {
        TRY(virtual_rank_device(local, &device, e));
        extra[n_extra++] = device.cuda;
        extra[n_extra++] = device.hip[0] ? device.hip : NULL;
    }
    return spawn_env_build(environ, &c, extra, ret, e);
}

const char *worker_setup_ras(const struct run *r)
{
    return r->setup->ras_list;
}

void worker_setup_round(void *arg, int local, struct crun_page_round *ret)
{
    const struct env_contract c = contract(arg, local, NULL);
    *ret = (struct crun_page_round){.rank = (int32_t)c.rank,
                                    .world_size = (int32_t)c.world_size,
                                    .local_rank = (int32_t)c.local_rank,
                                    .local_world_size = (int32_t)c.local_world_size,
                                    .group_rank = (int32_t)c.group_rank,
                                    .group_world_size = (int32_t)c.group_world_size,
                                    .round = (int32_t)c.round,
                                    .restart_count = (int32_t)c.restart_count};
    snprintf(ret->store, sizeof ret->store, "%s", c.store_url);
}

int worker_setup_argv(void *arg, int local, char ***ret, struct err *e)
{
    const struct run *r = arg;
    char rank[16];
    if (!r->program->macros)
        return 0;
    snprintf(rank, sizeof rank, "%d", local < 0 ? -1 : round_news(r)->rank_base + local);
    return program_args(r->program, rank, local, ret, e);
}

/* --- cores and cgroup */

const struct binding *worker_setup_bindings(const struct run *r)
{
    return r->setup->placement.bindings;
}

struct cgroup *worker_setup_cgroup(const struct run *r)
{
    return r->setup->cgroup;
}

static int make_cgroup(struct run *r, struct err *e)
{
    struct err why;
    if (r->config->cgroup == CONFIG_CGROUP_OFF ||
        cgroup_create(&r->setup->cgroup, r->cgroups, r->link->cgroup_dir, &why) == 0)
        return 0;
    if (r->config->cgroup == CONFIG_CGROUP_ON)
        return err_set(e, why.code, "%s (--cgroup on)", why.text);
    log_debug("agent", "%s", why.text);
    return 0;
}

int worker_setup_begin_round(struct run *r, uint64_t round, struct err *e)
{
    struct err why;
    if (!r->setup->cgroup || cgroup_begin_round(r->setup->cgroup, round, &why) == 0)
        return 0;
    if (r->config->cgroup == CONFIG_CGROUP_ON)
        return err_set(e, why.code, "%s (--cgroup on)", why.text);
    log_debug("agent", "%s", why.text);
    return 0;
}

void worker_setup_started(const struct run *r)
{
    cgroup_tidy(r->setup->cgroup);
}

void worker_setup_choose_threads(struct run *r)
{
    const struct placement *p = &r->setup->placement;
    if (!placement_sets_threads(p))
        return;
    const int least = least_threads(p);
    int most = least;
    for (int i = 0; i < p->workers; i++) {
        const int n = placement_threads(p, i);
        most = n > most ? n : most;
    }
    char range[32] = "";
    if (most > least)
        snprintf(range, sizeof range, " to %d", most);
    r->setup->sets_threads = true;
    logmux_print(r->mux, "OMP_NUM_THREADS is not set: each worker gets %d%s (workers: %d, cores: %d)", least, range,
                 p->workers, p->cores);
}

/* --- life */

int worker_setup_open(struct run *r, struct err *e)
{
    struct worker_setup *s = calloc(1, sizeof *s);
    if (!s)
        return err_errno(e, ENOMEM, "workers");
    s->nccl_async = getenv("TORCH_NCCL_ASYNC_ERROR_HANDLING");
    if (!s->nccl_async)
        s->nccl_async = "1";
    s->gives_dumps = !getenv(FLIGHT_DUMP_VARIABLE) && !getenv(FLIGHT_DUMP_OLD);
    s->gives_ras = ras_gives_addresses();
    if (s->gives_ras)
        ras_list(getpid(), (int)r->config->nproc, s->ras_list);
    r->setup = s;
    TRY(placement_plan(&s->placement, (enum binding_mode)r->config->numa_binding, (int)r->config->nproc, r->cgroups,
                       e));
    s->placement.one_thread = r->config->torchrun_compat;
    return make_cgroup(r, e);
}

void worker_setup_close(struct run *r)
{
    if (!r->setup)
        return;
    cgroup_destroy(r->setup->cgroup);
    placement_free(&r->setup->placement);
    free(r->setup);
    r->setup = NULL;
}
