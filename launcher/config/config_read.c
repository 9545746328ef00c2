/* From the command line, the environment and crun.conf to settings that fit together. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "common/base/err.h"
#include "common/base/numbers.h"
#include "common/http/http_auth.h"
#include "common/job/exitcode.h"
#include "common/net/addr.h"
#include "launcher/base/virtual_rank.h"
#include "launcher/config/config.h"

bool config_starts_agents(const struct config *c)
{
    return c->control_fd < 0 && (c->hosts || c->hostfile);
}

/* They are printed, and a terminal would obey them. */
static int refuse_control(const char *what, const char *text, struct err *e)
{
    for (const char *p = text; *p; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f)
            return err_set(e, ERR_USAGE, "%s: expected no control characters, got one of code %d at position %zu", what,
                           (unsigned char)*p, (size_t)(p - text) + 1);
    return 0;
}

static int check_run_id(const char *id, struct err *e)
{
    TRY(refuse_control("--rdzv-id", id, e));
    const int shown = strlen(id) > HOME_ID_MAX ? 60 : HOME_ID_MAX;
    if (!*id || id[0] == '.' || strlen(id) > HOME_ID_MAX)
        return err_set(e, ERR_USAGE, "--rdzv-id '%.*s%s': expected 1 to %d characters, not beginning with '.'", shown,
                       id, strlen(id) > HOME_ID_MAX ? "..." : "", HOME_ID_MAX);
    return 0;
}

/* Without the blanks around it, which another node's may not have. */
static int settle_typed_id(struct config *c, struct err *e)
{
    if (!c->run_id)
        return 0;
    const char *id = c->run_id + strspn(c->run_id, " ");
    size_t n = strlen(id);
    while (n && id[n - 1] == ' ')
        n--;
    if (n <= HOME_ID_MAX) {
        snprintf(c->own_id, sizeof c->own_id, "%.*s", (int)n, id);
        c->run_id = c->own_id;
    }
    return check_run_id(c->run_id, e);
}

static int random_id(char *out, struct err *e)
{
    unsigned char bytes[16];
    if (getrandom(bytes, sizeof bytes, 0) != sizeof bytes)
        return err_set(e, ERR_USAGE, "no random numbers for a run id (%s): expected --rdzv-id", strerror(errno));
    hex_write(out, bytes, sizeof bytes);
    return 0;
}

static int check_texts(struct config *c, struct err *e)
{
    const struct {
        const char *name, **field;
    } texts[] = {{"--hosts", &c->hosts},
                 {"--hostfile", &c->hostfile},
                 {"--rsh", &c->rsh},
                 {"--remote-crun", &c->remote_crun},
                 {"--rdzv-endpoint", &c->rdzv_endpoint},
                 {"--rdzv-backend", &c->rdzv_backend},
                 {"--rdzv-conf", &c->rdzv_conf},
                 {"--master-addr", &c->master_addr},
                 {"--local-addr", &c->local_addr},
                 {"--iface", &c->iface},
                 {"--token-file", &c->token_file},
                 {"--rdzv-ca", &c->rdzv_ca},
                 {"--http-token-file", &c->http_token_file},
                 {"--event-log", &c->event_log},
                 {"--failure-file", &c->failure_file},
                 {"--preemption-file", &c->stops.notice_file}};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        if (*texts[i].field && !**texts[i].field)
            *texts[i].field = NULL;
        if (*texts[i].field)
            TRY(refuse_control(texts[i].name, *texts[i].field, e));
    }
    c->rdzv_tls = c->rdzv_tls || c->rdzv_ca;
    if (c->insecure && c->token_file)
        return err_set(e, ERR_USAGE, "--insecure and --token-file contradict each other");
    return settle_typed_id(c, e);
}

/* -H "$HOSTS" of a variable that is not set would be a job on this host alone. */
static int check_hosts(const struct config *c, const struct arg_result *r, struct err *e)
{
    const struct {
        const char *option, *name, *text;
    } hosts[] = {{"hosts", "-H", c->hosts}, {"hostfile", "--hostfile", c->hostfile}};
    for (size_t i = 0; i < sizeof hosts / sizeof *hosts; i++)
        if (hosts[i].text && !*hosts[i].text &&
            args_source(&config_program, r, hosts[i].option) == ARG_FROM_COMMAND_LINE)
            return err_set(e, ERR_USAGE, "%s '': expected %s", hosts[i].name, i == 0 ? "hosts" : "the path of a file");
    return 0;
}

/* What crun.conf says of the rendezvous is for jobs of several nodes that nothing else leads to one. */
static void set_aside_configured(struct config *c, const struct arg_result *r)
{
    if (args_source(&config_program, r, "rdzv-endpoint") == ARG_FROM_FILE) {
        c->configured_endpoint = c->rdzv_endpoint;
        c->rdzv_endpoint = NULL;
    }
    if (args_source(&config_program, r, "token-file") == ARG_FROM_FILE) {
        c->configured_token = c->token_file;
        c->token_file = NULL;
    }
}

/* Two options say the same thing: the one that is nearer to the command line counts. */
static int choose_address(struct config *c, const struct arg_result *r, struct err *e)
{
    const enum arg_source addr = args_source(&config_program, r, "local-addr");
    const enum arg_source iface = args_source(&config_program, r, "iface");
    if (!c->local_addr || !c->iface)
        return 0;
    if (addr == iface)
        return err_set(e, ERR_USAGE, "--local-addr and --iface both say this node's address: leave one of them out");
    *(addr < iface ? &c->local_addr : &c->iface) = NULL;
    return 0;
}

/* crun-launch is crun with the manners of python -m torch.distributed.launch. */
static int settle_program(struct config *c, const struct arg_result *r, const char *self, struct err *e)
{
    const char *slash = strrchr(self, '/');
    if (strcmp(slash ? slash + 1 : self, "crun-launch") == 0) {
        c->how.python = true;
        if (args_source(&config_program, r, "use-env") == ARG_FROM_DEFAULT)
            c->how.use_env = false;
    }
    if (c->virtual_local_rank && config_spares(c) > 0)
        return err_set(
            e, ERR_USAGE,
            "--virtual-local-rank and --warm-spares contradict each other: a spare starts before it is known "
            "which device it gets");
    struct virtual_rank device;
    for (int i = 0; c->virtual_local_rank && !config_starts_agents(c) && i < c->nproc; i++)
        TRY(virtual_rank_device(i, &device, e));
    if (c->how.module && c->how.no_python && !c->how.run_path)
        return err_set(e, ERR_USAGE, "--module and --no-python contradict each other: leave one of them out");
    return 0;
}

/* torchrun's own is the one that there is without Python's plug-ins. */
static int check_logs_specs(const char *name, struct err *e)
{
    if (!name || !*name || strcmp(name, "default") == 0)
        return 0;
    return err_set(e, ERR_USAGE,
                   "--logs-specs '%s' names a Python plug-in, which crun cannot load: expected default (--log-layout, "
                   "--redirects and --tee say what goes where)",
                   name);
}

static int check_http(const struct config *c, struct err *e)
{
    return http_auth_check((int)c->http_port, c->http_bind, addr_host_is_loopback(c->http_bind), c->http_token_file,
                           c->http_insecure, e);
}

/* Of a job of one node the ranks are known; elsewhere one may come with another node. */
static int check_terminals(const struct config *c, struct err *e)
{
    const int ranks = (int)c->nproc;
    if (c->home.kind != HOME_LOCAL || config_starts_agents(c))
        return 0;
    if (c->stdin_rank >= ranks)
        return err_set(e, ERR_USAGE, "--stdin-rank %d: expected one of the job's %d ranks, 0 to %d", (int)c->stdin_rank,
                       ranks, ranks - 1);
    for (int i = 0; i < c->log.ptys.n; i++)
        if (c->log.ptys.v[i].first >= ranks)
            return err_set(e, ERR_USAGE, "--pty %d: expected some of the job's %d ranks, 0 to %d",
                           c->log.ptys.v[i].first, ranks, ranks - 1);
    return 0;
}

bool config_is_awaited(const struct config *c)
{
    return c->home.kind != HOME_LOCAL && c->nnodes.max > 1 && c->nnodes.min == c->nnodes.max && c->control_fd < 0 &&
           !c->dry_run;
}

/* Whether an error ends this crun at once, or first the job, is known when all else is read. */
static void count_workers(struct config *c, struct err *e)
{
    if (config_count_workers(c, e) == 0)
        return;
    c->cannot.code = EXIT_USAGE_ERROR;
    snprintf(c->cannot.text, sizeof c->cannot.text, "%.319s", e->text);
    c->nproc = 1;
}

int config_read(struct config *c, struct arg_result *r, int argc, char **argv, struct err *e)
{
    memset(c, 0, sizeof *c);
    TRY(args_parse(&config_program, argc, argv, c, r, e));
    if (r->help || r->version)
        return 0;
    c->nnodes_typed = args_source(&config_program, r, "nnodes") != ARG_FROM_DEFAULT;
    c->nproc_typed = args_source(&config_program, r, "nproc-per-node") == ARG_FROM_COMMAND_LINE;
    c->endpoint_typed = args_source(&config_program, r, "rdzv-endpoint") == ARG_FROM_COMMAND_LINE;
    if (!config_starts_agents(c))
        count_workers(c, e);
    set_aside_configured(c, r);
    TRY(check_hosts(c, r, e));
    TRY(check_texts(c, e));
    TRY(choose_address(c, r, e));
    TRY(settle_program(c, r, argv[0], e));
    TRY(check_logs_specs(c->logs_specs, e));
    config_apply_compat(c, r, argv[0]);
    if (rdzv_conf_parse(c->rdzv_conf, &c->conf, e) < 0)
        return err_wrap(e, "--rdzv-conf");
    if (c->conf.rank >= 0 && c->node_rank >= 0 && c->conf.rank != c->node_rank)
        return err_set(e, ERR_USAGE, "--node-rank %d and rank=%d of --rdzv-conf contradict each other",
                       (int)c->node_rank, (int)c->conf.rank);
    if (c->straggler_action == STRAGGLER_EXCLUDE && c->nnodes.max > 1 &&
        args_source(&config_program, r, "max-node-failures") == ARG_FROM_DEFAULT)
        c->max_node_failures = 1; /* the node of a straggler makes room for one that waits */
    stops_settle(&c->stops);
    TRY(stops_settle_limit(&c->stops, getenv("SLURM_JOB_END_TIME"), (int64_t)time(NULL), e));
    TRY(check_http(c, e));
    if (config_starts_agents(c)) /* the agents look for it themselves */
        c->home = (struct home){.kind = HOME_LOCAL, .node_rank = -1, .from = "-H"};
    else
        TRY(config_find_home(c, e));
    if (c->home.kind == HOME_LISTED && c->rdzv_tls && !c->home.daemons)
        return err_set(e, ERR_USAGE,
                       "--rdzv-tls: the hosts of a list are cruns, which speak no TLS: leave it out, or say that they "
                       "are daemons, with --rdzv-backend rendezvousd");
    if (c->home.kind == HOME_STATIC && c->rank_order != CONFIG_ORDER_AUTO && c->rank_order != CONFIG_ORDER_NODE_RANK)
        return err_set(e, ERR_USAGE,
                       "--rank-order: a static rendezvous orders nodes by their rank, expected node-rank");
    if (!c->run_id && c->home.run_id[0])
        c->run_id = c->home.run_id;
    if (!c->run_id) {
        TRY(random_id(c->own_id, e));
        c->run_id = c->own_id;
    }
    TRY(check_run_id(c->run_id, e));
    if (c->cannot.code && !config_is_awaited(c))
        return err_set(e, ERR_USAGE, "%s", c->cannot.text);
    TRY(check_terminals(c, e));
    TRY(refuse_control("--role", c->role, e));
    if (!*c->role) /* --role "$ROLE" of a variable that is not set */
        c->role = CONFIG_ROLE;
    if (strlen(c->role) > 64)
        return err_set(e, ERR_USAGE, "--role '%s': expected at most 64 characters", c->role);
    return log_conf_settle(&c->log, e);
}
