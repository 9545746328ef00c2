/* Prints what --dry-run shows: each worker's command, variables and output files. See dryrun.h. */
#include "launcher/config/dryrun.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "common/job/env_contract.h"
#include "launcher/base/program.h"
#include "launcher/base/shell_word.h"
#include "launcher/base/virtual_rank.h"
#include "launcher/config/config.h"
#include "launcher/output/log_layout.h"
#include "launcher/place/placement.h"
#include "launcher/witness/flight.h"
#include "launcher/witness/ras_addr.h"

struct dryrun {
    const struct config *c;
    const struct program *p;
    int group_rank; /* -1: the rendezvous decides */
    struct placement placement;
    FILE *out;
};

/* Variables of the contract whose value nobody knows yet. */
static const struct {
    const char *name, *why;
    bool ranks; /* known if the rank of the node is */
} later[] = {
    {"RANK", "decided by the rendezvous", true},
    {"WORLD_SIZE", "decided by the rendezvous", true},
    {"GROUP_RANK", "decided by the rendezvous", true},
    {"GROUP_WORLD_SIZE", "decided by the rendezvous", true},
    {"ROLE_RANK", "decided by the rendezvous", true},
    {"ROLE_WORLD_SIZE", "decided by the rendezvous", true},
    {"MASTER_ADDR", "address of group rank 0", false},
    {"MASTER_PORT", "a free port", false},
    {"CRUN_STORE", "resp://MASTER_ADDR:MASTER_PORT", false},
    {"CRUN_NODE_ID", "made at the start", false},
    {"TORCHELASTIC_ERROR_FILE", "a file of this worker and round", false},
};

static const char *why_later(const struct dryrun *d, const char *name)
{
    const enum home_kind kind = d->c->home.kind;
    if (kind == HOME_STATIC && (strncmp(name, "MASTER_", 7) == 0 || strcmp(name, "CRUN_STORE") == 0))
        return NULL;
    if (kind == HOME_LOCAL && strcmp(name, "MASTER_ADDR") == 0)
        return NULL;
    for (size_t i = 0; i < sizeof later / sizeof *later; i++)
        if (strcmp(later[i].name, name) == 0)
            return later[i].ranks && d->group_rank >= 0 ? NULL : later[i].why;
    return NULL;
}

/* Numbered nodes of a fixed number keep their numbers; that all start as many workers is assumed. */
static int known_group_rank(const struct config *c)
{
    struct rdzv_config job;
    if (c->home.kind == HOME_LOCAL)
        return 0;
    config_job(c, &job);
    const bool fixed = job.min_nodes == job.max_nodes && job.order == RDZV_ORDER_NODE_RANK;
    return fixed && c->home.node_rank < job.max_nodes ? c->home.node_rank : -1;
}

static int print_variable(void *ctx, const char *name, const char *value)
{
    const struct dryrun *d = ctx;
    const char *why = why_later(d, name);
    if (why)
        fprintf(d->out, "    %s=<%s>\n", name, why);
    else
        fprintf(d->out, "    %s=%s\n", name, value);
    return 0;
}

static int print_environment(struct dryrun *d, int local, int rank, struct err *e)
{
    const struct config *c = d->c;
    const char *async = getenv("TORCH_NCCL_ASYNC_ERROR_HANDLING");
    const int nodes = c->nnodes.max, n = (int)c->nproc;
    char url[HOME_ENDPOINT_MAX + 16];
    snprintf(url, sizeof url, "resp://%s", c->home.endpoint);
    const struct env_contract env = {.rank = rank,
                                     .world_size = nodes * n,
                                     .local_rank = c->virtual_local_rank ? 0 : local,
                                     .local_world_size = n,
                                     .group_rank = d->group_rank,
                                     .group_world_size = nodes,
                                     .role_rank = rank,
                                     .role_world_size = nodes * n,
                                     .max_restarts = c->max_restarts,
                                     .round = 1,
                                     .prev_rank = -1,
                                     .role_name = c->role,
                                     .master_addr = c->home.kind == HOME_STATIC ? c->home.host : "127.0.0.1",
                                     .master_port = c->home.port,
                                     .run_id = c->run_id,
                                     .use_agent_store = "True",
                                     .error_file = "",
                                     .signals = c->stops.handled.names,
                                     .nccl_async = async ? async : "1",
                                     .store_url = url,
                                     .node_id = "",
                                     .restart_reason = "start"};
    TRY(env_contract_write(&env, print_variable, d));
    if (placement_sets_threads(&d->placement))
        fprintf(d->out, "    OMP_NUM_THREADS=%d\n", placement_threads(&d->placement, local));
    if (c->log.dir && !getenv(FLIGHT_DUMP_VARIABLE) && !getenv(FLIGHT_DUMP_OLD))
        fprintf(d->out, "    " FLIGHT_DUMP_VARIABLE "=<in the folder of the round>\n");
    if (ras_gives_addresses())
        fprintf(d->out, "    " RAS_VARIABLE "=<made at the start>\n");
    if (!c->virtual_local_rank)
        return 0;
    struct virtual_rank device;
    TRY(virtual_rank_device(local, &device, e));
    fprintf(d->out, "    %s\n%s%s%s", device.cuda, device.hip[0] ? "    " : "", device.hip, device.hip[0] ? "\n" : "");
    return 0;
}

static void print_stream(struct dryrun *d, const char *name, bool shown, const char *path)
{
    fprintf(d->out, "  %s: %s%s%s%s\n", name, shown ? "console" : "", shown && path ? ", " : "", path ? path : "",
            shown || path ? "" : "nowhere");
}

static int print_output(struct dryrun *d, int local, int rank, struct err *e)
{
    const struct config *c = d->c;
    const struct log_routes routes = log_conf_routes(&c->log, local, rank);
    struct log_layout l;
    char out[LOG_PATH_MAX], err[LOG_PATH_MAX];
    TRY(log_layout_plan(&l, &c->log, c->run_id, e));
    log_layout_name_round(&l, 1, 0);
    if (rank < 0) {
        snprintf(out, sizeof out, "a file in %s", l.round);
        strcpy(err, out);
    } else {
        log_layout_path(&l, local, rank, LOG_FILE_OUT, out);
        log_layout_path(&l, local, rank, LOG_FILE_ERR, err);
    }
    print_stream(d, "stdout", routes.console & LOG_OUT, routes.file & LOG_OUT ? out : NULL);
    print_stream(d, "stderr", routes.console & LOG_ERR, routes.file & LOG_ERR ? err : NULL);
    return 0;
}

static int print_worker(struct dryrun *d, int local, struct err *e)
{
    const int rank = d->group_rank >= 0 ? d->group_rank * (int)d->c->nproc + local : -1;
    char number[16] = "?", **argv;
    if (rank >= 0)
        snprintf(number, sizeof number, "%d", rank);
    TRY(program_args(d->p, rank >= 0 ? number : NULL, local, &argv, e));
    fprintf(d->out, "rank %s, local rank %d\n  command:", number, local);
    for (size_t i = 0; argv[i]; i++) {
        fputc(' ', d->out);
        shell_print(i == 0 ? d->p->path : argv[i], d->out);
    }
    free(argv);
    char place[512];
    placement_text(&d->placement, local, place, sizeof place);
    fprintf(d->out, "\n  binding: %s\n", place[0] ? place : "none");
    fprintf(d->out, "  environment:\n");
    TRY(print_environment(d, local, rank, e));
    return print_output(d, local, rank, e);
}

int dryrun_print(const struct config *c, const struct program *p, const struct cgroup_tables *t, FILE *out,
                 struct err *e)
{
    struct dryrun d = {.c = c, .p = p, .group_rank = known_group_rank(c), .out = out};
    fprintf(out, "job %s: %d workers on this node, ", c->run_id, (int)c->nproc);
    if (c->nnodes.min == c->nnodes.max)
        fprintf(out, "%d node%s", c->nnodes.max, c->nnodes.max == 1 ? "" : "s");
    else
        fprintf(out, "%d to %d nodes", c->nnodes.min, c->nnodes.max);
    fprintf(out, ", rendezvous %s%s%s (%s)\n", home_kind_name(c->home.kind), c->home.endpoint[0] ? " at " : "",
            c->home.endpoint, c->home.from);
    TRY(placement_plan(&d.placement, (enum binding_mode)c->numa_binding, (int)c->nproc, t, e));
    d.placement.one_thread = c->torchrun_compat;
    if (p->python_from)
        fprintf(out, "python: %s (%s)\n", p->path, p->python_from);
    int rc = 0;
    for (int i = 0; i < c->nproc && rc == 0; i++)
        rc = print_worker(&d, i, e);
    placement_free(&d.placement);
    return rc;
}
