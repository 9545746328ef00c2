/* `crun doctor`: chooses the hosts, has them examined, and prints what was found (doctor.h). */
#include "launcher/tools/doctor/doctor.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "common/job/exitcode.h"
#include "launcher/tools/doctor/doctor_agent.h"

#define AT(field) .at = offsetof(struct doctor_config, field)

static const struct arg_spec specs[] = {
    ARG_GROUP("Hosts"),
    {.name = "host",
     .short_name = 'H',
     .type = ARG_STRING,
     AT(hosts),
     .aliases = "hosts",
     .metavar = "HOST[:N],...",
     .env = "CRUN_HOSTS",
     .help =
         "look at these hosts, and between them, by ssh; N workers each. Without it, --hostfile and RUN: at this one"},
    {.name = "hostfile",
     .type = ARG_STRING,
     AT(hostfile),
     .metavar = "FILE",
     .env = "CRUN_HOSTFILE",
     .help = "the hosts, a line each: HOST, HOST:N or HOST slots=N"},
    {.name = "rsh",
     .type = ARG_STRING,
     AT(rsh),
     .def = "ssh -o BatchMode=yes",
     .metavar = "COMMAND",
     .env = "CRUN_RSH",
     .help = "how other hosts are reached: the host and a command follow these words"},
    {.name = "remote-crun",
     .type = ARG_STRING,
     AT(remote_crun),
     .metavar = "PATH",
     .env = "CRUN_REMOTE_CRUN",
     .help = "crun on the other hosts; if not given, where it is here"},
    {.name = "nproc-per-node",
     .type = ARG_INT,
     AT(workers),
     .def = "1",
     .min = 1,
     .max = 4096,
     .env = "CRUN_NPROC_PER_NODE,PET_NPROC_PER_NODE",
     .help = "workers that a host is to run where the list says none: limits are judged by it"},
    {.name = "iface",
     .type = ARG_STRING,
     AT(iface),
     .metavar = "NAME",
     .env = "CRUN_IFACE",
     .help = "network interface that the job is to use"},
    {.name = "shared-dir",
     .type = ARG_STRING,
     AT(shared_dir),
     .metavar = "DIR",
     .help =
         "a folder that all hosts are to see, as that of checkpoints: the first writes a file there, the others read "
         "it, and it is removed"},
    ARG_GROUP("Rendezvous"),
    {.name = "rdzv-endpoint",
     .type = ARG_STRING,
     AT(endpoint),
     .metavar = "WHERE",
     .env = "CRUN_RDZV_ENDPOINT,PET_RDZV_ENDPOINT",
     .help = "HOST[:PORT] of a rendezvousd or of a crun that hosts: can it be reached, and does it take our token? "
             "file:///DIR: as --shared-dir. With RUN the hosts are those of that job"},
    {.name = "token-file",
     .type = ARG_STRING,
     AT(token_file),
     .metavar = "FILE",
     .env = "CRUN_TOKEN_FILE",
     .help = "secret of the hosts, on each of them; ~/.config/crun/token if not given"},
    {.name = "rdzv-tls", .type = ARG_FLAG, AT(tls), .env = "CRUN_RDZV_TLS", .help = "speak TLS with the rendezvousd"},
    {.name = "rdzv-ca",
     .type = ARG_STRING,
     AT(ca),
     .metavar = "FILE",
     .env = "CRUN_RDZV_CA",
     .help = "certificates of those who may vouch for the rendezvousd, PEM; implies --rdzv-tls"},
    ARG_GROUP("Looking"),
    {.name = "timeout",
     .type = ARG_SECONDS,
     AT(timeout_s),
     .def = "60s",
     .min = 1,
     .max = 3600,
     .help = "the longest to wait for a host's answer"},
    {.name = "json", .type = ARG_FLAG, AT(json), .help = "print what was seen and found as JSON"},
    ARG_END,
};

const struct arg_program doctor_program = {
    .name = "crun doctor",
    .usage = "[options] [RUN]",
    .summary =
        "Looks for what stands between these hosts and a job: token, ports, names, clocks, MTU, limits, cgroups, "
        "kernel, Python, GPUs, network interfaces. One sentence for each finding, and its remedy. Exit code 0: "
        "nothing was found; 1: something was.",
    .specs = specs,
    .operands = ARG_OPERANDS,
};

static int complain(const struct err *e, int code)
{
    fprintf(stderr, "crun doctor: %s\n", e->text);
    return code;
}

/* --- what is printed */

static void print_host(const char *label, const struct facts *f)
{
    char interfaces[512] = "";
    for (int i = 0; i < f->n_nics; i++) {
        const size_t n = strlen(interfaces);
        if (strcmp(f->nics[i].name, "lo") != 0)
            snprintf(interfaces + n, sizeof interfaces - n, ", %s %s MTU %d", f->nics[i].name,
                     f->nics[i].up ? "up" : "down", f->nics[i].mtu);
    }
    printf("%s: crun %s, Linux %s, %lld CPUs, %lld GPUs%s%s%s, Python %s%s%s%s%s%s\n", label, f->version, f->kernel,
           (long long)f->cores, (long long)f->gpus, f->gpu[0] ? " (" : "", f->gpu, f->gpu[0] ? ")" : "",
           f->python_version[0] ? f->python_version : "none", f->python[0] ? " (" : "", f->python,
           f->python[0] ? ", by " : "", f->python[0] ? f->python_from : "", f->python[0] ? ")" : "");
    if (interfaces[0])
        printf("%s: %s\n", label, interfaces + 2);
}

static void print_text(const struct doctor *d)
{
    for (int i = 0; i < d->hosts.n; i++)
        if (!d->at[i].gone)
            print_host(d->labels[i], &d->facts[i]);
    for (size_t i = 0; i < d->found.n; i++) {
        const struct finding *f = &d->found.v[i];
        printf("\n%s\n", f->text);
        if (i + 1 == d->found.n || d->found.v[i + 1].id != f->id)
            printf("    remedy: %s\n", finding_remedy(f->id));
    }
    printf("\n%d host%s looked at: ", d->hosts.n, d->hosts.n == 1 ? "" : "s");
    if (d->found.n == 0)
        puts("nothing found");
    else
        printf("%zu finding%s\n", d->found.n, d->found.n == 1 ? "" : "s");
}

static cJSON *to_json(const struct doctor *d)
{
    cJSON *o = cJSON_CreateObject(), *hosts = cJSON_AddArrayToObject(o, "hosts"),
          *found = cJSON_AddArrayToObject(o, "findings");
    for (int i = 0; i < d->hosts.n; i++) {
        cJSON *h = cJSON_CreateObject();
        cJSON_AddStringToObject(h, "host", d->labels[i]);
        cJSON *facts = d->at[i].gone ? cJSON_CreateNull() : facts_to_json(&d->facts[i]);
        /* the proof is only for this program, not for its output */
        cJSON_DeleteItemFromObjectCaseSensitive(facts, "token");
        cJSON_AddItemToObject(h, "facts", facts);
        cJSON_AddItemToArray(hosts, h);
    }
    for (size_t i = 0; i < d->found.n; i++) {
        cJSON *f = cJSON_CreateObject();
        cJSON_AddStringToObject(f, "finding", finding_name(d->found.v[i].id));
        cJSON_AddStringToObject(f, "text", d->found.v[i].text);
        cJSON_AddStringToObject(f, "remedy", finding_remedy(d->found.v[i].id));
        cJSON_AddItemToArray(found, f);
    }
    return o;
}

static void print_json(const struct doctor *d)
{
    cJSON *o = to_json(d);
    char *text = cJSON_PrintUnformatted(o);
    cJSON_Delete(o);
    puts(text ? text : "{}");
    free(text);
}

/* --- who is looked at */

static int find_hosts(struct doctor *d, struct err *e)
{
    const struct doctor_config *c = &d->config;
    if (c->hosts && c->hostfile)
        return err_set(e, ERR_USAGE, "-H and --hostfile both name the hosts: leave one of them out");
    if (d->run && (c->hosts || c->hostfile))
        return err_set(e, ERR_USAGE, "'%s': the hosts of a job are its own: leave -H and --hostfile out", d->run);
    if (d->run && !c->endpoint)
        return err_set(e, ERR_USAGE, "'%s': expected --rdzv-endpoint HOST[:PORT], where that job meets", d->run);
    d->named = c->hosts || c->hostfile;
    if (c->hosts)
        TRY(hosts_add_list(&d->hosts, c->hosts, "-H", e));
    if (c->hostfile)
        TRY(hosts_add_file(&d->hosts, c->hostfile, e));
    if (d->named && d->hosts.n == 0)
        return err_set(e, ERR_USAGE, "--hostfile '%.300s' names no host", c->hostfile ? c->hostfile : "");
    d->shared_dir = c->shared_dir;
    if (c->endpoint)
        TRY(doctor_look_at_place(d, e));
    return d->hosts.n > 0 ? 0 : hosts_add_list(&d->hosts, "localhost", "-H", e);
}

static void finish(struct doctor *d)
{
    if (d->at)
        doctor_hosts_close(d->at, d->hosts.n);
    hosts_free(&d->hosts);
    free(d->facts);
    free(d->ahead_us);
    free(d->within_us);
    free(d->labels);
    findings_free(&d->found);
}

static int look(struct doctor *d, struct err *e)
{
    TRY(remote_shell_make(&d->shell, d->config.rsh, d->config.remote_crun, DOCTOR_COMMAND, e));
    TRY(find_hosts(d, e));
    return doctor_examine(d, e);
}

static bool is_anything_checked(const struct doctor *d)
{
    bool any = (d->named && d->place_host[0]) || d->shared_dir;
    for (int i = 0; i < d->hosts.n && !any; i++)
        any = !d->at[i].gone;
    return any;
}

static int code_of(const struct doctor *d)
{
    if (!is_anything_checked(d))
        return EXIT_UNAVAILABLE;
    return d->found.n > 0 ? EXIT_FAIL : EXIT_OK;
}

int doctor_main(int argc, char **argv)
{
    struct doctor d = {0};
    struct arg_result r;
    struct err e = {0};
    if (args_parse(&doctor_program, argc, argv, &d.config, &r, &e) < 0)
        return complain(&e, EXIT_USAGE_ERROR);
    if (args_answer(&doctor_program, "crun " CRUN_VERSION, &d.config, &r, stdout))
        return EXIT_OK;
    if (argc - r.first_operand > 1) {
        err_set(&e, ERR_USAGE, "'%s': expected one RUN at most", argv[r.first_operand + 1]);
        return complain(&e, EXIT_USAGE_ERROR);
    }
    d.run = r.first_operand < argc ? argv[r.first_operand] : NULL;
    signal(SIGPIPE, SIG_IGN);
    const int rc = look(&d, &e);
    const int code = rc == ERR_USAGE ? EXIT_USAGE_ERROR : rc < 0 ? EXIT_UNAVAILABLE : code_of(&d);
    if (rc < 0)
        complain(&e, code);
    else if (d.config.json)
        print_json(&d);
    else
        print_text(&d);
    finish(&d);
    if (fflush(stdout) == 0)
        return code;
    err_errno(&e, errno, "the output cannot be written");
    return complain(&e, EXIT_CANT_CREATE);
}
