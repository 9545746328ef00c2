#include "launcher/config.h"

#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "common/err.h"
#include "common/exitcode.h"
#include "common/rdzv.h"
#include "launcher/binding.h"
#include "launcher/cores.h"
#include "launcher/gpus.h"
#include "launcher/log_prefix.h"

#define BACKOFF_MAX_MS 30000
#define BACKOFF_RESET_MS 10000
#define KILL_MS 1000

int64_t config_join_timeout_ms(const struct config *c)
{
    const int64_t margin_ms = 60000;
    const int64_t stopping_ms = stops_longest_ms(&c->stops) + margin_ms;
    if (c->conf.join_timeout_typed || stopping_ms <= c->conf.join_timeout_ms)
        return c->conf.join_timeout_ms;
    return stopping_ms;
}

static enum rdzv_order order(const struct config *c)
{
    switch (c->rank_order) {
    case CONFIG_ORDER_HOST:
        return RDZV_ORDER_HOST;
    case CONFIG_ORDER_JOIN:
        return RDZV_ORDER_JOIN;
    case CONFIG_ORDER_NODE_RANK:
        return RDZV_ORDER_NODE_RANK;
    default:
        return c->home.node_rank >= 0 ? RDZV_ORDER_NODE_RANK : RDZV_ORDER_HOST;
    }
}

void config_job(const struct config *c, struct rdzv_config *ret)
{
    *ret = (struct rdzv_config){
        .min_nodes = c->nnodes.min,
        .max_nodes = c->nnodes.max,
        .max_restarts = (int)c->max_restarts,
        .restart_window_ms = (int64_t)(c->restart_window * 1000),
        .backoff_ms = (int64_t)(c->restart_backoff * 1000),
        .backoff_max_ms = BACKOFF_MAX_MS,
        .backoff_reset_ms = BACKOFF_RESET_MS,
        .order = order(c),
        .join_timeout_ms = config_join_timeout_ms(c),
        .last_call_ms = c->conf.last_call_timeout_ms,
        .silence_ms = c->conf.keep_alive_interval_ms * c->conf.keep_alive_max_attempt,
        .kill_ms = KILL_MS,
        .first_round = 1,
    };
}

static int parse_nnodes(const char *text, void *field, struct err *e)
{
    struct config_nodes *n = field;
    char min[16];
    const char *colon = strchr(text, ':');
    int64_t lo, hi;
    struct err why;
    snprintf(min, sizeof min, "%.*s", colon ? (int)(colon - text) : 15, text);
    if (parse_i64(min, "", 1, RDZV_NODES_MAX, &lo, &why) < 0 ||
        parse_i64(colon ? colon + 1 : min, "", 1, RDZV_NODES_MAX, &hi, &why) < 0 || lo > hi)
        return err_set(e, ERR_USAGE, "expected N or MIN:MAX with 1 <= MIN <= MAX <= %d", RDZV_NODES_MAX);
    *n = (struct config_nodes){(int)lo, (int)hi};
    return 0;
}

static int parse_nproc(const char *text, void *field, struct err *e)
{
    int64_t *n = field;
    struct gpu gpus[GPUS_MAX];
    const bool automatic = strcmp(text, "auto") == 0, gpu = strcmp(text, "gpu") == 0;
    if (automatic || gpu) {
        *n = gpus_usable(gpus);
        if (*n > 0)
            return 0;
        if (gpu)
            return err_set(e, ERR_USAGE,
                           "no GPU is usable here (CUDA_VISIBLE_DEVICES counts): expected a number, cpu or auto");
    }
    if (automatic || strcmp(text, "cpu") == 0) {
        *n = cores_usable();
        return 0;
    }
    struct err why;
    if (parse_i64(text, "workers", 1, RDZV_SLOTS_MAX, n, &why) < 0)
        return err_set(e, ERR_USAGE, "expected a number from 1 to %d, auto, cpu or gpu", RDZV_SLOTS_MAX);
    return 0;
}

static const struct arg_spec specs[] = {
    ARG_GROUP("Size"),
    {.name = "nproc-per-node",
     .type = ARG_CUSTOM,
     .at = offsetof(struct config, nproc),
     .def = "1",
     .metavar = "N|auto|cpu",
     .env = "CRUN_NPROC_PER_NODE,PET_NPROC_PER_NODE",
     .parse = parse_nproc,
     .help = "workers to start on this node; auto and cpu: one for each core crun may run on"},
    {.name = "nnodes",
     .type = ARG_CUSTOM,
     .at = offsetof(struct config, nnodes),
     .def = "1:1",
     .metavar = "N|MIN:MAX",
     .env = "CRUN_NNODES,PET_NNODES",
     .parse = parse_nnodes,
     .help = "nodes of the job: exactly N, or begin with MIN and take up to MAX; nodes beyond MAX wait as spares"},
    {.name = "numa-binding",
     .type = ARG_CHOICE,
     .at = offsetof(struct config, numa_binding),
     .def = "off",
     .choices = BINDING_CHOICES,
     .env = "CRUN_NUMA_BINDING",
     .help = "bind each worker to cores near its GPU (worker N has GPU N), without one to an even share: those of its "
             "NUMA node or socket, "
             "a share of the node that no other worker has, or a group of cores with one largest cache"},
    ARG_GROUP("Rendezvous"),
    {.name = "standalone",
     .type = ARG_FLAG,
     .at = offsetof(struct config, standalone),
     .env = "CRUN_STANDALONE,PET_STANDALONE",
     .help = "one node, with the rendezvous inside crun: needs nothing else. One node without any of the options below "
             "means the same"},
    {.name = "rdzv-endpoint",
     .type = ARG_STRING,
     .at = offsetof(struct config, rdzv_endpoint),
     .metavar = "WHERE",
     .env = "CRUN_RDZV_ENDPOINT,PET_RDZV_ENDPOINT",
     .help = "where the nodes meet: HOST[:PORT] (port 29400) of a rendezvousd or of one of the nodes, whose crun then "
             "hosts the "
             "rendezvous; redis://, rediss:// or redis+sentinel:// URL; file:///DIR that all nodes see"},
    {.name = "rdzv-backend",
     .type = ARG_STRING,
     .at = offsetof(struct config, rdzv_backend),
     .metavar = "NAME",
     .env = "CRUN_RDZV_BACKEND,PET_RDZV_BACKEND",
     .help = "c10d, rendezvousd and tcp (all the same), static, redis or file; mostly the endpoint says it"},
    {.name = "run-id",
     .type = ARG_STRING,
     .at = offsetof(struct config, run_id),
     .aliases = "rdzv-id",
     .metavar = "ID",
     .env = "CRUN_RUN_ID,PET_RDZV_ID",
     .help = "name of the job; the scheduler's job id if not given, a random one for one node; a rendezvous that jobs "
             "share needs one"},
    {.name = "rdzv-conf",
     .type = ARG_STRING,
     .at = offsetof(struct config, rdzv_conf),
     .metavar = "K=V,...",
     .env = "CRUN_RDZV_CONF,PET_RDZV_CONF",
     .help =
         "join_timeout=600, last_call_timeout=30, close_timeout=30, keep_alive_interval=1, keep_alive_max_attempt=3, "
         "daemon_grace=60, timeout (static: join_timeout), is_host=0|1, rank, store_type=tcp|file; times in seconds or "
         "with a unit"},
    {.name = "node-rank",
     .type = ARG_INT,
     .at = offsetof(struct config, node_rank),
     .def = "-1",
     .min = -1,
     .max = 99999,
     .env = "CRUN_NODE_RANK,PET_NODE_RANK",
     .help = "number of this node; -1: none, or the scheduler's. Static rendezvous: 0 hosts"},
    {.name = "master-addr",
     .type = ARG_STRING,
     .at = offsetof(struct config, master_addr),
     .metavar = "HOST",
     .env = "CRUN_MASTER_ADDR,PET_MASTER_ADDR",
     .help = "static rendezvous: address of node 0, told to the workers as it is; 127.0.0.1 if not given"},
    {.name = "master-port",
     .type = ARG_INT,
     .at = offsetof(struct config, master_port),
     .def = "-1",
     .min = -1,
     .max = 65535,
     .env = "CRUN_MASTER_PORT,PET_MASTER_PORT",
     .help = "static rendezvous: port of rendezvous and workers' store on node 0; -1: 29500. One node: port of the "
             "workers' store; -1: "
             "a fresh one each round"},
    {.name = "local-addr",
     .type = ARG_STRING,
     .at = offsetof(struct config, local_addr),
     .metavar = "ADDR",
     .env = "CRUN_LOCAL_ADDR,PET_LOCAL_ADDR",
     .help =
         "address other nodes reach this one by; the source address of its connection to the rendezvous if not given"},
    {.name = "iface",
     .type = ARG_STRING,
     .at = offsetof(struct config, iface),
     .metavar = "NAME",
     .env = "CRUN_IFACE",
     .help = "network interface whose address is taken as --local-addr"},
    {.name = "rank-order",
     .type = ARG_CHOICE,
     .at = offsetof(struct config, rank_order),
     .def = "auto",
     .choices = "auto|host|join|node-rank",
     .env = "CRUN_RANK_ORDER",
     .help = "order of new nodes: by host name (node2 before node10), by arrival or by node rank; auto: by node rank "
             "where this node has "
             "one, else by host name. Nodes that stay keep their order"},
    {.name = "token-file",
     .type = ARG_STRING,
     .at = offsetof(struct config, token_file),
     .metavar = "FILE",
     .env = "CRUN_TOKEN_FILE",
     .help = "secret that the nodes of a job and a rendezvousd share; ~/.config/crun/token, made on first use, if not "
             "given"},
    {.name = "rdzv-tls",
     .type = ARG_FLAG,
     .at = offsetof(struct config, rdzv_tls),
     .env = "CRUN_RDZV_TLS",
     .help = "go to a rendezvousd by TLS; crun never hosts then"},
    {.name = "rdzv-ca",
     .type = ARG_STRING,
     .at = offsetof(struct config, rdzv_ca),
     .metavar = "FILE",
     .env = "CRUN_RDZV_CA",
     .help = "certificates of those who may vouch for the rendezvousd, PEM; implies --rdzv-tls"},
    {.name = "insecure",
     .type = ARG_FLAG,
     .at = offsetof(struct config, insecure),
     .env = "CRUN_INSECURE",
     .help = "host a rendezvous, or go to one, without a secret: anybody who reaches it may take part in the job"},
    ARG_GROUP("Failures and stops"),
    {.name = "max-restarts",
     .type = ARG_INT,
     .at = offsetof(struct config, max_restarts),
     .def = "0",
     .min = 0,
     .max = 1000000,
     .env = "CRUN_MAX_RESTARTS,PET_MAX_RESTARTS",
     .help = "how often the job may be restarted after a worker failed or a node died, counted over all nodes"},
    {.name = "restart-window",
     .type = ARG_SECONDS,
     .at = offsetof(struct config, restart_window),
     .def = "0",
     .min = 0,
     .max = 86400.0 * 365,
     .env = "CRUN_RESTART_WINDOW",
     .help = "restarts longer ago than this no longer count; 0: all count"},
    {.name = "restart-backoff",
     .type = ARG_SECONDS,
     .at = offsetof(struct config, restart_backoff),
     .def = "1",
     .min = 0,
     .max = 3600,
     .env = "CRUN_RESTART_BACKOFF",
     .help = "wait before the second restart in a row of rounds that lived less than 10 s, doubled for each further "
             "one up to 30 s; 0: "
             "never wait"},
    {.name = "shutdown-timeout",
     .type = ARG_SECONDS,
     .at = offsetof(struct config, stops.shutdown),
     .def = "30",
     .min = 0,
     .max = STOPS_GRACE_MAX,
     .env = "CRUN_SHUTDOWN_TIMEOUT,PET_SHUTDOWN_TIMEOUT,TORCH_ELASTIC_SHUTDOWN_TIMEOUT",
     .help = "time between SIGTERM and SIGKILL when workers are stopped because another one failed"},
    {.name = "resize-timeout",
     .type = ARG_CUSTOM,
     .at = offsetof(struct config, stops.resize),
     .def = "same",
     .metavar = "SECONDS|same",
     .env = "CRUN_RESIZE_TIMEOUT",
     .parse = stops_parse_grace,
     .help = "the same when a node comes or leaves: healthy workers save first; same: as --shutdown-timeout"},
    {.name = "drain-timeout",
     .type = ARG_CUSTOM,
     .at = offsetof(struct config, stops.drain),
     .def = "same",
     .metavar = "SECONDS|same",
     .env = "CRUN_DRAIN_TIMEOUT",
     .parse = stops_parse_grace,
     .help = "the same when the job or this node is to end early: a stop signal, a preemption notice, a worker's exit "
             "code 75; same: as --shutdown-timeout"},
    {.name = "signals-to-handle",
     .type = ARG_CUSTOM,
     .at = offsetof(struct config, stops.handled),
     .def = STOPS_HANDLED,
     .metavar = "NAME,...",
     .env = "CRUN_SIGNALS_TO_HANDLE,PET_SIGNALS_TO_HANDLE",
     .parse = stops_parse_signals,
     .help = "signals to crun that drain the job; others keep their usual meaning for crun, and no worker survives it. "
             "SIGUSR1 and SIGUSR2, if not named, go to the workers that catch them. What was ignored when crun started "
             "stays ignored"},
    {.name = "preemption-signal",
     .type = ARG_CUSTOM,
     .at = offsetof(struct config, stops.preempt),
     .def = "none",
     .metavar = "NAME|none",
     .env = "CRUN_PREEMPTION_SIGNAL",
     .parse = stops_parse_signal,
     .help = "signal by which a scheduler says that this node will be taken away (Slurm: sbatch --signal=USR1@90): the "
             "job drains and crun exits with 75, so that it is started again"},
    {.name = "fatal-codes",
     .type = ARG_CUSTOM,
     .at = offsetof(struct config, stops.fatal),
     .def = "none",
     .metavar = "N,N-M,...|none",
     .env = "CRUN_FATAL_CODES",
     .parse = stops_parse_codes,
     .help = "a worker that fails with one of these (128 + signal for a signal) fails the job, whatever restarts are "
             "left"},
    {.name = "kill-timeout",
     .type = ARG_SECONDS,
     .at = offsetof(struct config, stops.kill),
     .def = "30",
     .min = 0.1,
     .max = 86400,
     .env = "CRUN_KILL_TIMEOUT",
     .help =
         "how long SIGKILL may take: processes that the kernel has not ended by then are named and left behind, and "
         "crun exits with 71"},
    {.name = "hang-timeout",
     .type = ARG_CUSTOM,
     .at = offsetof(struct config, hang),
     .def = "auto",
     .metavar = "auto|SECONDS|off",
     .env = "CRUN_HANG_TIMEOUT",
     .parse = hang_parse,
     .help =
         "end a round in which a worker that tells libcrun of its steps makes none for so long, as if it had failed; "
         "auto: learned from the steps so far"},
    {.name = "cgroup",
     .type = ARG_CHOICE,
     .at = offsetof(struct config, cgroup),
     .def = "auto",
     .choices = "auto|on|off",
     .env = "CRUN_CGROUP",
     .help = "start the workers in a cgroup of their own, so that one write kills them and all they started; auto: "
             "where a cgroup2 "
             "can be made, on: or refuse to start"},
    ARG_GROUP("Output"),
    {.name = "log-dir",
     .type = ARG_STRING,
     .at = offsetof(struct config, log.dir),
     .metavar = "DIR",
     .env = "CRUN_LOG_DIR,PET_LOG_DIR",
     .help = "write each worker's output to files too: DIR/RUN_ID/round-R/rank-N.out and .err, at the end of what an "
             "earlier job of this id left there; without it, or with /dev/null, no files are written"},
    {.name = "log-layout",
     .type = ARG_CHOICE,
     .at = offsetof(struct config, log.layout),
     .def = "crun",
     .choices = "crun|torchrun",
     .env = "CRUN_LOG_LAYOUT",
     .help = "torchrun: DIR/RUN_ID_XXXXXX/attempt_N/LOCAL_RANK/stdout.log and stderr.log"},
    {.name = "redirects",
     .short_name = 'r',
     .type = ARG_CUSTOM,
     .at = offsetof(struct config, log.redirects),
     .def = "0",
     .metavar = "STREAMS",
     .env = "CRUN_REDIRECTS,PET_REDIRECTS",
     .parse = log_conf_parse_spec,
     .help = "streams that go to files only: 0 none, 1 stdout, 2 stderr, 3 both, or per local rank as in 0:1,1:2 or "
             "0-3:3,*:1 (g8-15:3: global ranks). With -r or -t the streams that neither names go to the console only. "
             "Files go to ./logs without --log-dir"},
    {.name = "tee",
     .short_name = 't',
     .type = ARG_CUSTOM,
     .at = offsetof(struct config, log.tee),
     .def = "0",
     .metavar = "STREAMS",
     .env = "CRUN_TEE,PET_TEE",
     .parse = log_conf_parse_spec,
     .help = "streams that go to files and the console, said as for --redirects"},
    {.name = "local-ranks-filter",
     .type = ARG_CUSTOM,
     .at = offsetof(struct config, log.local_ranks),
     .metavar = "RANKS",
     .env = "CRUN_LOCAL_RANKS_FILTER,PET_LOCAL_RANKS_FILTER",
     .parse = log_conf_parse_ranks,
     .help = "show only these local ranks on the console, as in 0,2,5-7; files hold all"},
    {.name = "ranks-filter",
     .type = ARG_CUSTOM,
     .at = offsetof(struct config, log.ranks),
     .metavar = "RANKS",
     .env = "CRUN_RANKS_FILTER",
     .parse = log_conf_parse_ranks,
     .help = "show only these ranks of the job on the console"},
    {.name = "show",
     .type = ARG_CHOICE,
     .at = offsetof(struct config, log.show),
     .def = "all",
     .choices = "all|first-failure",
     .env = "CRUN_SHOW",
     .help = "first-failure: all output goes to files only, and the console shows the last lines of the worker that "
             "failed first"},
    {.name = "collapse",
     .type = ARG_FLAG,
     .at = offsetof(struct config, log.collapse),
     .env = "CRUN_COLLAPSE",
     .help = "show a line that several workers write within 200 ms once, as [8 ranks: 0-7]: LINE"},
    {.name = "log-rate",
     .type = ARG_INT,
     .at = offsetof(struct config, log.rate),
     .def = "0",
     .min = 0,
     .max = 1e9,
     .metavar = "LINES",
     .env = "CRUN_LOG_RATE",
     .help = "show at most so many lines a second of each stream of a worker, and how many were left out; files hold "
             "all; 0: no limit"},
    {.name = "duplicate-stdout-filters",
     .type = ARG_STRING,
     .at = offsetof(struct config, log.out_filters),
     .metavar = "TEXT,...",
     .env = "CRUN_DUPLICATE_STDOUT_FILTERS,PET_DUPLICATE_STDOUT_FILTERS",
     .help = "write the lines of stdout that hold one of these texts (,, is a comma) to one file of the node as well"},
    {.name = "duplicate-stderr-filters",
     .type = ARG_STRING,
     .at = offsetof(struct config, log.err_filters),
     .metavar = "TEXT,...",
     .env = "CRUN_DUPLICATE_STDERR_FILTERS,PET_DUPLICATE_STDERR_FILTERS",
     .help = "the same for stderr"},
    {.name = "log-rotate-size",
     .type = ARG_CUSTOM,
     .at = offsetof(struct config, log.rotate_bytes),
     .def = "0",
     .metavar = "BYTES",
     .env = "CRUN_LOG_ROTATE_SIZE",
     .parse = log_conf_parse_bytes,
     .help = "begin a log file anew when it grows beyond this (500K, 100M, 2G); the old ones are NAME.1, NAME.2, ...; "
             "0: never"},
    {.name = "log-rotate-keep",
     .type = ARG_INT,
     .at = offsetof(struct config, log.rotate_keep),
     .def = "0",
     .min = 0,
     .max = 1000000,
     .env = "CRUN_LOG_ROTATE_KEEP",
     .help = "keep so many old files of each that this round rotated; 0: all"},
    {.name = "log-max-size",
     .type = ARG_CUSTOM,
     .at = offsetof(struct config, log.max_bytes),
     .def = "0",
     .metavar = "BYTES",
     .env = "CRUN_LOG_MAX_SIZE",
     .parse = log_conf_parse_bytes,
     .help = "write at most so much of a worker's stream to its files in a round, and how much was left out; 0: all"},
    {.name = "log-prefix",
     .type = ARG_FLAG,
     .at = offsetof(struct config, log.prefix),
     .def = "on",
     .env = "CRUN_LOG_PREFIX",
     .help = "put a prefix in front of the workers' lines on the console"},
    {.name = "log-line-prefix-template",
     .type = ARG_STRING,
     .at = offsetof(struct config, log.template),
     .def = LOG_PREFIX_DEFAULT,
     .metavar = "TEXT",
     .env = "CRUN_LOG_LINE_PREFIX_TEMPLATE,PET_LOG_LINE_PREFIX_TEMPLATE,TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE",
     .help = "that prefix, with ${role_name}, ${local_rank}, ${rank}, ${rank_in_role}, ${group_rank}, ${hostname}, "
             "${host}, ${time}, ${stream}, ${round} and ${run_id}"},
    {.name = "color",
     .type = ARG_CHOICE,
     .at = offsetof(struct config, log.color),
     .def = "auto",
     .choices = "auto|always|never",
     .env = "CRUN_COLOR",
     .help = "a colour for each rank's prefix; auto: on a terminal, unless NO_COLOR is set"},
    {.name = "log-level",
     .type = ARG_CHOICE,
     .at = offsetof(struct config, log_level),
     .def = "warn",
     .choices = "error|warn|info|debug",
     .env = "CRUN_LOG_LEVEL",
     .help = "how much crun says about itself"},
    {.name = "role",
     .type = ARG_STRING,
     .at = offsetof(struct config, role),
     .def = "default",
     .env = "CRUN_ROLE,PET_ROLE",
     .metavar = "NAME",
     .help = "label of the workers: ROLE_NAME and the prefix of their lines"},
    ARG_GROUP("Program"),
    {.name = "module",
     .short_name = 'm',
     .type = ARG_FLAG,
     .at = offsetof(struct config, how.module),
     .env = "CRUN_MODULE,PET_MODULE",
     .help = "PROGRAM is the name of a Python module: python3 -u -m PROGRAM"},
    {.name = "no-python",
     .type = ARG_FLAG,
     .at = offsetof(struct config, how.no_python),
     .env = "CRUN_NO_PYTHON,PET_NO_PYTHON",
     .help = "run PROGRAM itself, also if its name ends in .py"},
    {.name = "run-path",
     .type = ARG_FLAG,
     .at = offsetof(struct config, how.run_path),
     .env = "CRUN_RUN_PATH,PET_RUN_PATH",
     .help = "run PROGRAM by Python's runpy.run_path: a script of any name, a folder or a zip file with __main__.py"},
    {.name = "use-env",
     .type = ARG_FLAG,
     .at = offsetof(struct config, how.use_env),
     .def = "on",
     .env = "CRUN_USE_ENV,PET_USE_ENV",
     .help = "workers learn their local rank from LOCAL_RANK only; off, which is the default of crun-launch: also from "
             "a first argument --local-rank=N"},
    {.name = "virtual-local-rank",
     .type = ARG_FLAG,
     .at = offsetof(struct config, virtual_local_rank),
     .env = "CRUN_VIRTUAL_LOCAL_RANK,PET_VIRTUAL_LOCAL_RANK",
     .help = "give every worker LOCAL_RANK=0 and, in CUDA_VISIBLE_DEVICES, one device: the one of its real local rank"},
    {.name = "dry-run",
     .type = ARG_FLAG,
     .at = offsetof(struct config, dry_run),
     .env = "CRUN_DRY_RUN",
     .help = "print ranks, commands, bindings and environment of this node's workers; start nothing"},
    ARG_GROUP("Taken from torchrun without effect"),
    {.name = "monitor-interval",
     .type = ARG_SECONDS,
     .at = offsetof(struct config, monitor_interval),
     .def = "0.1",
     .env = "CRUN_MONITOR_INTERVAL,PET_MONITOR_INTERVAL",
     .help = "crun does not look from time to time: the kernel tells it of a death at once"},
    {.name = "start-method",
     .type = ARG_CHOICE,
     .at = offsetof(struct config, start_method),
     .def = "spawn",
     .choices = "spawn|fork|forkserver",
     .env = "CRUN_START_METHOD,PET_START_METHOD",
     .help = "crun starts programs, not functions of a Python process"},
    {.name = "event-log-handler",
     .type = ARG_STRING,
     .at = offsetof(struct config, event_log_handler),
     .def = "null",
     .metavar = "NAME",
     .env = "CRUN_EVENT_LOG_HANDLER,PET_EVENT_LOG_HANDLER",
     .help = "names a Python plug-in"},
    {.name = "logs-specs",
     .type = ARG_STRING,
     .at = offsetof(struct config, logs_specs),
     .metavar = "NAME",
     .env = "CRUN_LOGS_SPECS,PET_LOGS_SPECS",
     .help = "names a Python plug-in"},
    ARG_END,
};

static const char *const settings_files[] = {"~/.config/crun/crun.conf", "/etc/crun.conf", NULL};

const struct arg_program config_program = {
    .name = "crun",
    .usage = "[options] PROGRAM [args...]",
    .summary = "Starts PROGRAM once per worker with torchrun's environment variables, watches all of them, restarts "
               "them together when one "
               "fails, and leaves no process behind.",
    .epilog = "PROGRAM is looked for on PATH, beside crun and in ../worker of crun's folder; NAME.py is run by "
              "$PYTHON_EXEC or python3 with -u.\n"
              "${local_rank} and ${rank} in its arguments become the worker's; $${rank} is left as ${rank}.\n"
              "Exit code: that of the first worker that failed (128 + signal for a signal), 75 after a stop in good "
              "order, 2 for a wrong\n"
              "command line, 126 or 127 if PROGRAM cannot be executed or found.\n",
    .specs = specs,
    .operands = ARG_STOP_AT_FIRST,
    .files = settings_files,
    .subcommands = "status",
};
