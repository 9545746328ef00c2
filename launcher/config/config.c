/* The option table of crun; most of it is in fragments, by subject: config_*.def. What its values must fit:
 * config_read.c; what they mean for the job: config_job.c. */
#include "launcher/config/config.h"

#include <math.h>
#include <stddef.h>

#include "launcher/output/log_prefix.h"
#include "launcher/place/binding.h"

static const struct arg_spec specs[] = {
    ARG_GROUP("Size"),
    {.name = "nproc-per-node",
     .type = ARG_CUSTOM,
     .at = offsetof(struct config, nproc),
     .def = "1",
     .metavar = "N|auto|cpu|gpu",
     .env = "CRUN_NPROC_PER_NODE,PET_NPROC_PER_NODE",
     .parse = config_parse_nproc,
     .help = "workers to start on this node; cpu: one for each core crun may use, gpu: for each visible GPU, auto: gpu "
             "where there is one, else cpu"},
    {.name = "nnodes",
     .type = ARG_CUSTOM,
     .at = offsetof(struct config, nnodes),
     .def = "1:1",
     .metavar = "N|MIN:MAX",
     .env = "CRUN_NNODES,PET_NNODES",
     .parse = config_parse_nnodes,
     .help = "nodes of the job: exactly N, or begin with MIN and take up to MAX; nodes beyond MAX wait as spares, but "
             "beyond N they are refused with 69 unless --spare is given"},
    {.name = "spare",
     .type = ARG_FLAG,
     .at = offsetof(struct config, spare),
     .env = "CRUN_WAIT_AS_SPARE",
     .help =
         "where the job has all its nodes, wait for one of them to go and take its place, instead of ending with 69"},
    {.name = "spare-exit-code",
     .type = ARG_INT,
     .at = offsetof(struct config, spare_exit_code),
     .def = "72",
     .min = 0,
     .max = 255,
     .env = "CRUN_SPARE_EXIT_CODE",
     .help =
         "exit code of a spare that was not needed, so that nothing ran on it, when the job has succeeded; 0: count "
         "that as a success"},
    {.name = "numa-binding",
     .type = ARG_CHOICE,
     .at = offsetof(struct config, numa_binding),
     .def = "off",
     .choices = BINDING_CHOICES,
     .env = "CRUN_NUMA_BINDING",
     .help = "bind each worker to cores near its GPU (worker N has GPU N), without one to an even share: those of its "
             "NUMA node or socket, a share of the node that no other worker has, or a group of cores with one largest "
             "cache"},
    ARG_GROUP("Other hosts"),
    {.name = "hosts",
     .short_name = 'H',
     .type = ARG_STRING,
     .at = offsetof(struct config, hosts),
     .aliases = "host",
     .metavar = "HOST[:SLOTS],...",
     .env = "CRUN_HOSTS",
     .help = "start crun on each of these hosts, by ssh; SLOTS: workers there, else --nproc-per-node. They meet at the "
             "first host unless --rdzv-endpoint names a place"},
    {.name = "hostfile",
     .type = ARG_STRING,
     .at = offsetof(struct config, hostfile),
     .aliases = "machinefile",
     .metavar = "FILE",
     .env = "CRUN_HOSTFILE",
     .help = "the same from a file with a host a line: HOST, HOST slots=N or HOST:N"},
    {.name = "rsh",
     .type = ARG_STRING,
     .at = offsetof(struct config, rsh),
     .aliases = "launch-agent",
     .def = "ssh -x -o BatchMode=yes -o ServerAliveInterval=15 -o ServerAliveCountMax=4",
     .metavar = "COMMAND",
     .env = "CRUN_RSH",
     .help = "what reaches another host: it is called with the host and a command for its shell"},
    {.name = "remote-crun",
     .type = ARG_STRING,
     .at = offsetof(struct config, remote_crun),
     .metavar = "PATH",
     .env = "CRUN_REMOTE_CRUN",
     .help = "crun on those hosts; the path of this crun if not given"},
    {.name = "export",
     .short_name = 'x',
     .type = ARG_CUSTOM,
     .at = offsetof(struct config, exports),
     .metavar = "NAME[=VALUE]",
     .env = "CRUN_EXPORT",
     .parse = config_parse_export,
     .help =
         "a variable for crun and workers on those hosts; may be given several times. NAME,NAME for several of them as "
         "they are here; crun's own variables go along anyway"},
    {.name = "control-fd",
     .type = ARG_INT,
     .at = offsetof(struct config, control_fd),
     .def = "-1",
     .min = -1,
     .max = 1e6,
     .hidden = true,
     .help = "of crun on those hosts"},
#include "launcher/config/config_rendezvous.def"

#include "launcher/config/config_stops.def"

#include "launcher/config/config_output.def"

#include "launcher/config/config_program.def"
    ARG_GROUP("Taken from torchrun without effect"),
    {.name = "monitor-interval",
     .type = ARG_SECONDS,
     .at = offsetof(struct config, monitor_interval),
     .def = "0.1",
     .env = "CRUN_MONITOR_INTERVAL,PET_MONITOR_INTERVAL",
     .help = "crun does not look from time to time: the kernel reports a death at once"},
    {.name = "start-method",
     .type = ARG_CHOICE,
     .at = offsetof(struct config, start_method),
     .def = "spawn",
     .choices = "spawn|fork|forkserver",
     .env = "CRUN_START_METHOD,PET_START_METHOD",
     .help = "crun starts programs, not functions of a Python process"},
    {.name = "logs-specs",
     .type = ARG_STRING,
     .at = offsetof(struct config, logs_specs),
     .metavar = "NAME",
     .env = "CRUN_LOGS_SPECS,PET_LOGS_SPECS",
     .help = "default, or a Python plug-in, which is refused"},
    ARG_END,
};

static const char *const settings_files[] = {"~/.config/crun/crun.conf", "/etc/crun.conf", NULL};

static const struct arg_row gone[] = {
    {"collapse", "--ranks-filter 0 shows the lines of one rank, and files hold those of all (--log-dir)"},
    {NULL, NULL}};

const struct arg_program config_program = {
    .name = "crun",
    .usage = "[options] PROGRAM [args...]",
    .summary = "Starts PROGRAM once per worker with torchrun's environment variables, watches all of them, restarts "
               "them together when one fails, and leaves no process behind.",
    .epilog = "PROGRAM is looked for on PATH, beside crun and in ../worker of crun's folder. NAME.py, a folder with "
              "__main__.py, a zip file and a\n"
              "text that is no program are run by Python with -u: $PYTHON_EXEC, the one of the environment that crun "
              "is in, of $VIRTUAL_ENV or\n"
              "$CONDA_PREFIX, or python3 on PATH.\n"
              "${local_rank} and ${rank} in its arguments become the worker's; $${rank} is left as ${rank}.\n"
              "Exit code: that of the first worker that failed (128 + signal for a signal), 75 after a stop in good "
              "order, 2 for a wrong\n"
              "command line, 126 or 127 if PROGRAM cannot be executed or found.\n",
    .specs = specs,
    .operands = ARG_STOP_AT_FIRST,
    .preferred_env = "PET_",
    .gone = gone,
    .files = settings_files,
    .sections = config_sections,
};
