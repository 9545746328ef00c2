/* Options that were typed and do nothing here, and nodes of srun's that nobody typed: each is reported, in one line. */
#include <ctype.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "launcher/base/ending.h"
#include "launcher/config/config.h"

static const char *with_python(const struct config *c)
{
    return c->how.run_path ? "--run-path counts more" : NULL;
}

static const char *one_node(const struct config *c)
{
    return c->home.kind == HOME_LOCAL ? "one node meets nobody" : NULL;
}

static const char *only_node(const struct config *c)
{
    return c->node_rank > 0 ? one_node(c) : NULL;
}

static const char *constant_size(const struct config *c)
{
    return c->nnodes.max == 1 ? "a job of one node is never resized" : NULL;
}

static const char *one_node_address(const struct config *c)
{
    return c->home.kind == HOME_LOCAL ? "no other node has to reach this one" : NULL;
}

static const char *without_server(const struct config *c)
{
    return c->home.kind == HOME_LOCAL || c->home.kind == HOME_FILE ? "there is no server to talk to" : NULL;
}

static const char *without_secret(const struct config *c)
{
    return c->home.kind == HOME_LOCAL ? "there is no other node to prove it to" : NULL;
}

static const char *without_restarts(const struct config *c)
{
    return c->max_restarts == 0 ? "--max-restarts is 0" : NULL;
}

static const char *without_more_rounds(const struct config *c)
{
    return c->nnodes.max > c->nnodes.min ? NULL : without_restarts(c);
}

static const char *one_node_spares(const struct config *c)
{
    return c->home.kind == HOME_LOCAL ? "a job of one node has no spares" : NULL;
}

static const char *without_spares(const struct config *c)
{
    return one_node_spares(c) ? one_node_spares(c) : without_restarts(c);
}

static const char *polling(const struct config *c)
{
    return "the kernel tells of a death at once";
}

static const char *functions(const struct config *c)
{
    return "crun starts programs, not functions of a Python process";
}

static const char *event_plugins(const struct config *c)
{
    static const char *const known[] = {"null", "console", "dynamic_rendezvous"};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(c->event_log_handler, known[i]) == 0)
            return NULL;
    return "it names a Python plug-in; see --event-log";
}

static const char *unseen(const struct config *c)
{
    return log_conf_hides_all(&c->log) ? "no line of the workers is shown" : NULL;
}

static const char *without_prefix(const struct config *c)
{
    return !c->log.prefix ? "the lines have no prefix (--log-prefix)" : NULL;
}

/* The files of the filters have prefixes too. */
static const char *unseen_prefix(const struct config *c)
{
    const bool filtered = c->log.dir && (c->log.out_filters || c->log.err_filters);
    return without_prefix(c) ? without_prefix(c) : filtered ? NULL : unseen(c);
}

/* With -H it is not the user who types it here. */
static const char *colorless(const struct config *c)
{
    return c->control_fd >= 0 ? NULL : without_prefix(c) ? without_prefix(c) : unseen(c);
}

static const char *without_http(const struct config *c)
{
    return c->http_port < 0 ? "there is no HTTP without --http-port" : NULL;
}

static const char *without_files(const struct config *c)
{
    return !c->log.dir ? "no log files are written (--log-dir)" : NULL;
}

static const char *without_rotation(const struct config *c)
{
    return c->log.rotate_keep > 0 && c->log.rotate_bytes == 0 ? "nothing is rotated without --log-rotate-size"
                                                              : without_files(c);
}

static const char *without_holds(const struct config *c)
{
    return c->recovery == CONFIG_RECOVERY_RESTART ? "--recovery restart holds nobody" : without_restarts(c);
}

static const char *without_any_holds(const struct config *c)
{
    return c->recovery == CONFIG_RECOVERY_RESTART ? without_holds(c) : without_more_rounds(c);
}

static const char *without_exclusion(const struct config *c)
{
    return c->straggler_action == STRAGGLER_EXCLUDE ? without_restarts(c) : NULL;
}

static const char *without_watch(const struct config *c)
{
    return c->hang.off ? "--hang-timeout off watches nobody" : NULL;
}

static const char *without_hosts(const struct config *c)
{
    return !c->hosts && !c->hostfile && c->control_fd < 0 ? "no other host is started from here (-H, --hostfile)"
                                                          : NULL;
}

/* option; whether a variable of the environment is worth a line, too; why it does nothing, NULL: it does something */
#define UNUSED(X)                                                                                                      \
    X("module", true, with_python)                                                                                     \
    X("no-python", true, with_python)                                                                                  \
    X("monitor-interval", true, polling)                                                                               \
    X("start-method", true, functions)                                                                                 \
    X("event-log-handler", true, event_plugins)                                                                        \
    X("node-rank", false, only_node)                                                                                   \
    X("rsh", false, without_hosts)                                                                                     \
    X("remote-crun", false, without_hosts)                                                                             \
    X("export", false, without_hosts)                                                                                  \
    X("resize-timeout", false, constant_size)                                                                          \
    X("fatal-codes", false, without_restarts)                                                                          \
    X("http-bind", false, without_http)                                                                                \
    X("color", false, colorless)                                                                                       \
    X("rank-order", false, one_node)                                                                                   \
    X("rdzv-conf", false, one_node)                                                                                    \
    X("local-addr", false, one_node_address)                                                                           \
    X("iface", false, one_node_address)                                                                                \
    X("token-file", false, without_secret)                                                                             \
    X("rdzv-tls", false, without_server)                                                                               \
    X("rdzv-ca", false, without_server)                                                                                \
    X("insecure", false, without_secret)                                                                               \
    X("spare", false, one_node_spares)                                                                                 \
    X("spare-exit-code", false, one_node_spares)                                                                       \
    X("max-node-failures", false, without_spares)                                                                      \
    X("restart-window", false, without_restarts)                                                                       \
    X("restart-backoff", false, without_restarts)                                                                      \
    X("recovery", false, without_more_rounds)                                                                          \
    X("warm-spares", false, without_holds)                                                                             \
    X("hold-timeout", false, without_any_holds)                                                                        \
    X("straggler-action", false, without_exclusion)                                                                    \
    X("hang-witness", false, without_watch)                                                                            \
    X("log-layout", false, without_files)                                                                              \
    X("log-rotate-size", false, without_files)                                                                         \
    X("log-rotate-keep", false, without_rotation)                                                                      \
    X("log-max-size", false, without_files)                                                                            \
    X("duplicate-stdout-filters", false, without_files)                                                                \
    X("duplicate-stderr-filters", false, without_files)                                                                \
    X("log-line-prefix-template", false, unseen_prefix)                                                                \
    X("local-ranks-filter", false, unseen)                                                                             \
    X("ranks-filter", false, unseen)                                                                                   \
    X("log-rate", false, unseen)

static void print_overridden_signal(const struct config *c, const struct arg_result *r, FILE *out)
{
    char name[32];
    if (c->stops.preempt && sigismember(&c->stops.handled.set, c->stops.preempt) == 1 &&
        args_source(&config_program, r, "signals-to-handle") >= ARG_FROM_COMMAND_LINE)
        fprintf(out, "crun: %s in --signals-to-handle has no effect: --preemption-signal counts more\n",
                signal_text(c->stops.preempt, name, sizeof name));
}

/* Where Slurm does not say when the job ends, there is no limit. */
static void print_no_limit(const struct config *c, const struct arg_result *r, FILE *out)
{
    size_t i = 0;
    while (strcmp(config_program.specs[i].name, "time-limit") != 0)
        i++;
    if (r->source[i] == ARG_FROM_COMMAND_LINE && strcmp(r->text[i], "auto") == 0 && c->stops.time_limit == 0)
        fputs("crun: --time-limit auto has no effect: SLURM_JOB_END_TIME is not set, so that nothing says when the "
              "job ends\n",
              out);
}

/* srun on several nodes, and not a word of how many: each crun is a job of its own, which is seldom meant. */
static void print_alone(const struct config *c, const struct arg_result *r, FILE *out)
{
    const char *nodes = getenv("SLURM_STEP_NUM_NODES");
    int64_t n;
    const bool nested = getenv("TORCHELASTIC_RUN_ID") != NULL; /* within a job that knows its nodes */
    if (nodes && !nested && !config_starts_agents(c) && c->home.kind == HOME_LOCAL &&
        parse_i64(nodes, "", 2, INT32_MAX, &n, NULL) == 0 &&
        args_source(&config_program, r, "nnodes") == ARG_FROM_DEFAULT &&
        args_source(&config_program, r, "standalone") == ARG_FROM_DEFAULT)
        fprintf(out,
                "crun: srun runs on %s nodes, and each crun there is a job of its own: --nnodes %s makes them one "
                "(--standalone if that is meant)\n",
                nodes, nodes);
}

/* Typed, such an option is refused; a variable may be set for every program of the machine. */
static void print_gone(FILE *out)
{
    char name[64];
    for (const struct arg_row *row = config_program.gone; row->term; row++) {
        size_t n = (size_t)snprintf(name, sizeof name, "CRUN_%s", row->term);
        for (size_t i = 0; i < n && i < sizeof name; i++)
            name[i] = name[i] == '-' ? '_' : (char)toupper((unsigned char)name[i]);
        const char *value = getenv(name);
        if (value && *value)
            fprintf(out, "crun: %s has no effect, for --%s is gone: %s\n", name, row->term, row->text);
    }
}

void config_print_unused(const struct config *c, const struct arg_result *r, FILE *out)
{
    static const struct {
        const char *name;
        bool variables;
        const char *(*why)(const struct config *c);
    } options[] = {
#define X(name, variables, why) {name, variables, why},
        UNUSED(X)
#undef X
    };
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        const enum arg_source least = options[i].variables ? ARG_FROM_ENV : ARG_FROM_COMMAND_LINE;
        const char *why = options[i].why(c);
        if (why && args_source(&config_program, r, options[i].name) >= least)
            fprintf(out, "crun: --%s has no effect: %s\n", options[i].name, why);
    }
    print_overridden_signal(c, r, out);
    print_no_limit(c, r, out);
    print_alone(c, r, out);
    print_gone(out);
    for (size_t i = 0; c->home.unused[i]; i++)
        fprintf(out, "crun: %s has no effect with %s\n", c->home.unused[i], c->home.from);
    for (size_t i = 0; i < RDZV_CONF_UNUSED_N; i++)
        if (c->conf.unused[i])
            fprintf(out, "crun: --rdzv-conf: %s has no effect\n", c->conf.unused[i]);
    if (c->conf.unknown[0])
        fprintf(out, "crun: --rdzv-conf: no key %s\n", c->conf.unknown);
}
