#include "launcher/config.h"

#include <errno.h>
#include <math.h>
#include <sched.h>
#include <stddef.h>
#include <string.h>
#include <sys/random.h>

#include "common/err.h"
#include "common/exitcode.h"
#include "common/rdzv.h"
#include "launcher/group.h"

int config_cores(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

int64_t config_join_timeout_ms(const struct config *c)
{
    const int64_t margin_ms = 60000, least_ms = 600000;
    const int64_t stopping_ms = (int64_t)(c->shutdown_timeout * 1000) + GROUP_KILL_BOUND_MS + margin_ms;
    return stopping_ms > least_ms ? stopping_ms : least_ms;
}

static int parse_nnodes(const char *text, void *field, struct err *e)
{
    if (strcmp(text, "1") != 0 && strcmp(text, "1:1") != 0)
        return err_set(e, ERR_USAGE, "this version of crun runs one node: expected 1 or 1:1");
    *(int *)field = 1;
    return 0;
}

static int parse_nproc(const char *text, void *field, struct err *e)
{
    int64_t *n = field;
    if (strcmp(text, "auto") == 0 || strcmp(text, "cpu") == 0) {
        *n = config_cores();
        return 0;
    }
    struct err why;
    if (parse_i64(text, "workers", 1, RDZV_SLOTS_MAX, n, &why) < 0)
        return err_set(e, ERR_USAGE, "expected a number from 1 to %d, auto or cpu", RDZV_SLOTS_MAX);
    return 0;
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

/* Becomes the name of a folder. */
static int check_run_id(const char *id, struct err *e)
{
    TRY(refuse_control("--run-id", id, e));
    if (!*id || strchr(id, '/') || id[0] == '.' || strlen(id) > 128)
        return err_set(e, ERR_USAGE, "--run-id '%s': expected 1 to 128 characters without '/', not beginning with '.'",
                       id);
    return 0;
}

/* Options of torchrun that this version does not have. They are known only to be refused by a sentence that says what to do. */
#define ABSENT_OPTIONS(X)                                                                                              \
    X(rdzv_backend, "rdzv-backend", 0, "has one rendezvous, the one inside it: leave the option out")                  \
    X(rdzv_endpoint, "rdzv-endpoint", 0, "has one rendezvous, the one inside it: leave the option out")                \
    X(rdzv_conf, "rdzv-conf", 0, "has one rendezvous, the one inside it: leave the option out")                        \
    X(node_rank, "node-rank", 0, "runs one node, which has rank 0: leave the option out")                              \
    X(master_addr, "master-addr", 0, "runs one node and picks MASTER_ADDR itself: leave the option out")               \
    X(master_port, "master-port", 0, "picks a fresh MASTER_PORT for each round: leave the option out")                 \
    X(local_addr, "local-addr", 0, "runs one node on 127.0.0.1: leave the option out")                                 \
    X(module, "module", 'm', "starts no Python modules by name: write python3 -m MODULE as the program")               \
    X(no_python, "no-python", 0, "runs every PROGRAM but NAME.py as it is: leave the option out")                      \
    X(redirects, "redirects", 'r', "shows all output and, with --log-dir, writes it to files: leave the option out")   \
    X(tee, "tee", 't', "shows all output and, with --log-dir, writes it to files: leave the option out")               \
    X(monitor_interval, "monitor-interval", 0, "is told of deaths by the kernel at once: leave the option out")        \
    X(start_method, "start-method", 0, "has one way to start workers: leave the option out")

#define X(id, long_name, letter, text)                                                                                 \
    static int refuse_##id(const char *value, void *field, struct err *e)                                              \
    {                                                                                                                  \
        return err_set(e, ERR_USAGE, "this version of crun %s", text);                                                 \
    }
ABSENT_OPTIONS(X)
#undef X

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
     .help = "nodes of the job; this version runs one"},
    ARG_GROUP("Rendezvous"),
    {.name = "standalone",
     .type = ARG_FLAG,
     .at = offsetof(struct config, standalone),
     .def = "on",
     .env = "CRUN_STANDALONE,PET_STANDALONE",
     .help = "one node, with the rendezvous inside crun: needs nothing else"},
    {.name = "run-id",
     .type = ARG_STRING,
     .at = offsetof(struct config, run_id),
     .aliases = "rdzv-id",
     .metavar = "ID",
     .env = "CRUN_RUN_ID,PET_RDZV_ID",
     .help = "name of the job; a random one if not given"},
    ARG_GROUP("Failures and stops"),
    {.name = "max-restarts",
     .type = ARG_INT,
     .at = offsetof(struct config, max_restarts),
     .def = "0",
     .min = 0,
     .max = 1000000,
     .env = "CRUN_MAX_RESTARTS,PET_MAX_RESTARTS",
     .help = "how often the job may be restarted after a worker failed"},
    {.name = "shutdown-timeout",
     .type = ARG_SECONDS,
     .at = offsetof(struct config, shutdown_timeout),
     .def = "30",
     .min = 0,
     .max = 86400 * 7,
     .env = "CRUN_SHUTDOWN_TIMEOUT,PET_SHUTDOWN_TIMEOUT,TORCH_ELASTIC_SHUTDOWN_TIMEOUT",
     .help = "time between SIGTERM and SIGKILL whenever workers are stopped"},
    ARG_GROUP("Output"),
    {.name = "log-dir",
     .type = ARG_STRING,
     .at = offsetof(struct config, log_dir),
     .metavar = "DIR",
     .env = "CRUN_LOG_DIR,PET_LOG_DIR",
     .help =
         "write DIR/RUN_ID/round-R/rank-N.out and .err besides the console, at the end of what an earlier job of this "
         "id left there; without it no files are written"},
    {.name = "log-prefix",
     .type = ARG_FLAG,
     .at = offsetof(struct config, log_prefix),
     .def = "on",
     .env = "CRUN_LOG_PREFIX",
     .help = "put [ROLE LOCAL_RANK]: in front of the workers' lines on the console"},
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
#define X(id, long_name, letter, text)                                                                                 \
    {.name = (long_name), .short_name = (letter), .type = ARG_CUSTOM, .hidden = true, .parse = refuse_##id},
    ABSENT_OPTIONS(X)
#undef X
        ARG_END,
};

const struct arg_program config_program = {
    .name = "crun",
    .usage = "[options] PROGRAM [args...]",
    .summary = "Starts PROGRAM once per worker with torchrun's environment variables, watches all of them, restarts "
               "them together when one "
               "fails, and leaves no process behind.",
    .epilog = "PROGRAM is looked for on PATH, beside crun and in ../worker of crun's folder; NAME.py is run by "
              "$PYTHON_EXEC or python3.\n"
              "Exit code: that of the first worker that failed (128 + signal for a signal), 75 after a stop in good "
              "order, 2 for a wrong\n"
              "command line, 126 or 127 if PROGRAM cannot be executed or found.\n",
    .specs = specs,
    .operands = ARG_STOP_AT_FIRST,
};

static int random_id(char out[40], struct err *e)
{
    unsigned char bytes[16];
    if (getrandom(bytes, sizeof bytes, 0) != sizeof bytes)
        return err_set(e, ERR_USAGE, "no random numbers for a run id (%s): expected --run-id", strerror(errno));
    for (size_t i = 0; i < sizeof bytes; i++)
        snprintf(out + 2 * i, 3, "%02x", bytes[i]);
    return 0;
}

int config_read(struct config *c, struct arg_result *r, int argc, char **argv, struct err *e)
{
    memset(c, 0, sizeof *c);
    TRY(args_parse(&config_program, argc, argv, c, r, e));
    if (r->help || r->version || r->markdown)
        return 0;
    if (!c->run_id) {
        TRY(random_id(c->random_id, e));
        c->run_id = c->random_id;
    }
    TRY(check_run_id(c->run_id, e));
    if (!c->standalone)
        return err_set(e, ERR_USAGE,
                       "--no-standalone: this version of crun has no other rendezvous than the one inside it");
    TRY(refuse_control("--role", c->role, e));
    if (strlen(c->role) > 64)
        return err_set(e, ERR_USAGE, "--role '%s': expected at most 64 characters", c->role);
    if (c->log_dir && !*c->log_dir)
        c->log_dir = NULL;
    return 0;
}
