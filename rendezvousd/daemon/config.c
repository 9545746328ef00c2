/* rendezvousd's options: their table, and checks of several together (config.h). */
#include "rendezvousd/daemon/config.h"
#include "common/base/err.h"
#include "common/http/http_auth.h"
#include "common/job/manual.h"
#include "common/net/addr.h"
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int parse_size_or_0(const char *text, void *field, struct err *e)
{
    int64_t n;
    TRY(parse_bytes(text, 0, &n, e));
    if (n > (int64_t)1 << 50)
        return err_set(e, ERR_USAGE, "expected at most 1048576G");
    *(int64_t *)field = n;
    return 0;
}

static int parse_size(const char *text, void *field, struct err *e)
{
    int64_t n;
    TRY(parse_bytes(text, 1, &n, e));
    return parse_size_or_0(text, field, e);
}

#define AT(field) .at = offsetof(struct config, field)
#define BYTES .type = ARG_CUSTOM, .parse = parse_size, .metavar = "BYTES"

static const struct arg_spec specs[] = {
    ARG_GROUP("Listening"),
    {.name = "bind",
     .type = ARG_STRING,
     AT(bind),
     .def = "127.0.0.1",
     .metavar = "ADDR[,ADDR]",
     .env = "RENDEZVOUSD_BIND",
     .help = "addresses to listen on. Beyond loopback a --token-file is needed, or --insecure"},
    {.name = "port",
     .type = ARG_INT,
     AT(port),
     .def = "29400",
     .min = 0,
     .max = 65535,
     .env = "RENDEZVOUSD_PORT",
     .help = "port to listen on; 0: the kernel picks one"},
    {.name = "port-timeout",
     .type = ARG_SECONDS,
     AT(port_timeout_s),
     .def = "60s",
     .min = 0,
     .max = 86400,
     .env = "RENDEZVOUSD_PORT_TIMEOUT",
     .help =
         "if another process has the port, the longest to try again before exit code 69: a crun may host a job there "
         "while the daemon is restarted"},
    {.name = "port-file",
     .type = ARG_STRING,
     AT(port_file),
     .metavar = "FILE",
     .env = "RENDEZVOUSD_PORT_FILE",
     .help = "write the port to FILE once the server listens; it goes when the server ends"},
    {.name = "ready-fd",
     .type = ARG_INT,
     AT(ready_fd),
     .def = "-1",
     .min = -1,
     .max = 1048576,
     .metavar = "N",
     .env = "RENDEZVOUSD_READY_FD",
     .help =
         "write a newline to this inherited descriptor once the server listens, and close it. systemd is notified by "
         "NOTIFY_SOCKET"},
    {.name = "insecure",
     .type = ARG_FLAG,
     AT(insecure),
     .env = "RENDEZVOUSD_INSECURE",
     .help = "serve whoever reaches the port, also beyond loopback and other local users: nobody is authenticated"},
    ARG_GROUP("Authentication"),
    {.name = "token-file",
     .type = ARG_STRING,
     AT(token_file),
     .metavar = "FILE",
     .env = "RENDEZVOUSD_TOKEN_FILE",
     .help = "lines 'principal secret', readable by its owner only, or fd:N for an inherited descriptor. Every "
             "connection has to prove "
             "that it knows one; read again on SIGHUP. Without it, only local connections of our own user are served"},
    {.name = "operators",
     .type = ARG_STRING,
     AT(operators),
     .metavar = "NAME[,NAME]",
     .env = "RENDEZVOUSD_OPERATORS",
     .help = "principals of --token-file that may list, drain and evict the jobs of all (crun admin)"},
    {.name = "allow-plain-auth",
     .type = ARG_FLAG,
     AT(plain_auth),
     .env = "RENDEZVOUSD_ALLOW_PLAIN_AUTH",
     .help = "allow Redis' AUTH, which sends the secret itself: for redis-cli on loopback or over TLS"},
    {.name = "auth-timeout",
     .type = ARG_SECONDS,
     AT(auth_timeout_s),
     .def = "2s",
     .min = 0.01,
     .max = 3600,
     .env = "RENDEZVOUSD_AUTH_TIMEOUT",
     .help = "time a connection has to authenticate (a TLS handshake before it has --request-timeout)"},
    {.name = "max-unauthenticated",
     .type = ARG_INT,
     AT(max_unauthenticated),
     .def = "1000",
     .min = 1,
     .max = 1000000,
     .env = "RENDEZVOUSD_MAX_UNAUTHENTICATED",
     .help =
         "connections that have yet to authenticate, half of --max-clients at most. For one more the oldest that has "
         "sent nothing is closed, first of those of one address, /64 of IPv6 or local user that has more than half"},
    {.name = "max-clients-per-address",
     .type = ARG_INT,
     AT(max_per_address),
     .def = "0",
     .min = 0,
     .max = 1000000,
     .env = "RENDEZVOUSD_MAX_CLIENTS_PER_ADDRESS",
     .help = "connections of one address beyond loopback; 0: no limit"},
    ARG_GROUP("TLS"),
    {.name = "tls-cert",
     .type = ARG_STRING,
     AT(tls_cert),
     .metavar = "FILE",
     .env = "RENDEZVOUSD_TLS_CERT",
     .help = "certificate chain (PEM). TLS is then spoken on the same port with clients that begin with it; read again "
             "on SIGHUP"},
    {.name = "tls-key",
     .type = ARG_STRING,
     AT(tls_key),
     .metavar = "FILE",
     .env = "RENDEZVOUSD_TLS_KEY",
     .help = "its private key (PEM); default: in the certificate's file"},
    {.name = "tls-client-ca",
     .type = ARG_STRING,
     AT(tls_client_ca),
     .metavar = "FILE",
     .env = "RENDEZVOUSD_TLS_CLIENT_CA",
     .help = "TLS clients must show a certificate of this authority (PEM), besides what else is asked of them"},
    {.name = "tls-only",
     .type = ARG_FLAG,
     AT(tls_only),
     .env = "RENDEZVOUSD_TLS_ONLY",
     .help = "refuse clients that do not speak TLS"},
    ARG_GROUP("HTTP: health, metrics, status page"),
    {.name = "http-port",
     .type = ARG_INT,
     AT(http_port),
     .def = "-1",
     .min = -1,
     .max = 65535,
     .env = "RENDEZVOUSD_HTTP_PORT",
     .help = "port for HTTP; 0: the kernel picks one; -1: no HTTP"},
    {.name = "http-bind",
     .type = ARG_STRING,
     AT(http_bind),
     .def = "127.0.0.1",
     .metavar = "ADDR",
     .env = "RENDEZVOUSD_HTTP_BIND",
     .help = "address for HTTP. Beyond loopback --http-token-file is needed, or --http-insecure"},
    {.name = "http-token-file",
     .type = ARG_STRING,
     AT(http_token_file),
     .metavar = "FILE",
     .env = "RENDEZVOUSD_HTTP_TOKEN_FILE",
     .help = "lines 'principal secret': who shows one, as Bearer or Basic authorization, sees all jobs. Those of "
             "--token-file see their own: on this host, and from elsewhere if they stand here too"},
    {.name = "http-insecure",
     .type = ARG_FLAG,
     AT(http_insecure),
     .env = "RENDEZVOUSD_HTTP_INSECURE",
     .help = "let whoever reaches the HTTP port see that jobs are there, their states and figures, under whatever host "
             "name"},
    ARG_GROUP("Memory of jobs"),
    {.name = "state-dir",
     .type = ARG_STRING,
     AT(state_dir),
     .metavar = "DIR",
     .env = "RENDEZVOUSD_STATE_DIR",
     .help = "keep jobs (not keys) and their history in DIR, so that they outlive a restart of the daemon; one daemon "
             "per folder"},
    {.name = "state",
     .type = ARG_STRING,
     AT(state),
     .metavar = "STATE",
     .env = "RENDEZVOUSD_STATE",
     .help =
         "keep jobs (not keys, not history) in STATE, which other daemons share: a folder (DIR or file:///DIR), "
         "etcd://HOST[:PORT],...[/PREFIX], etcds:// or k8s://[NAMESPACE/]LEASE. One of them leads, the others stand "
         "by; crun is given all of them (--rdzv-endpoint A:29400,B:29400)"},
    {.name = "advertise",
     .type = ARG_STRING,
     AT(advertise),
     .metavar = "ADDR",
     .env = "RENDEZVOUSD_ADVERTISE",
     .help = "with --state: the numeric address at which the other daemons, and clients, reach this one. Default: the "
             "first of --bind, or of this host if that is all addresses"},
    {.name = "history",
     .type = ARG_INT,
     AT(history),
     .def = "1000",
     .min = 0,
     .max = 100000,
     .metavar = "N",
     .env = "RENDEZVOUSD_HISTORY",
     .help = "finished jobs that the status page remembers: curves, ends, failure reports; each takes 16 KiB at most"},
    ARG_GROUP("Limits"),
    {.name = "max-clients",
     .type = ARG_INT,
     AT(max_clients),
     .def = "10000",
     .min = 1,
     .max = 1000000,
     .env = "RENDEZVOUSD_MAX_CLIENTS",
     .help = "connections served at once; more are refused. Fewer where the system allows fewer open files"},
    {.name = "max-clients-per-principal",
     .type = ARG_INT,
     AT(max_per_principal),
     .def = "0",
     .min = 0,
     .max = 1000000,
     .env = "RENDEZVOUSD_MAX_CLIENTS_PER_PRINCIPAL",
     .help = "connections of one principal of --token-file; 0: half of --max-clients where it has several principals"},
    {.name = "max-memory",
     BYTES,
     AT(max_memory),
     .def = "1G",
     .env = "RENDEZVOUSD_MAX_MEMORY",
     .help = "of all keys and values, beyond which writes are refused; and as much again for clients' buffers"},
    {.name = "max-memory-per-principal",
     .type = ARG_CUSTOM,
     .parse = parse_size_or_0,
     .metavar = "BYTES",
     AT(max_principal_memory),
     .def = "0",
     .env = "RENDEZVOUSD_MAX_MEMORY_PER_PRINCIPAL",
     .help = "of all keys and values of one principal of --token-file, with those of its jobs; 0: half of --max-memory "
             "where it has several principals"},
    {.name = "max-request",
     BYTES,
     AT(max_request),
     .def = "9M",
     .env = "RENDEZVOUSD_MAX_REQUEST",
     .help = "one request with all its arguments; at most 1G. The default has room for a value of 8 MiB, PyTorch's own "
             "limit. Heartbeats wait for some milliseconds for each MiB of a value"},
    {.name = "max-output",
     BYTES,
     AT(max_output),
     .def = "64M",
     .env = "RENDEZVOUSD_MAX_OUTPUT",
     .help = "replies that wait for one client, beyond which it is closed; at most 1G"},
    {.name = "request-timeout",
     .type = ARG_SECONDS,
     AT(request_timeout_s),
     .def = "10s",
     .min = 0.01,
     .max = 86400,
     .env = "RENDEZVOUSD_REQUEST_TIMEOUT",
     .help = "a request that was begun must be complete by then"},
    {.name = "max-jobs",
     .type = ARG_INT,
     AT(max_jobs),
     .def = "1000",
     .min = 1,
     .max = 1000000,
     .env = "RENDEZVOUSD_MAX_JOBS",
     .help = "jobs at once"},
    {.name = "max-jobs-per-principal",
     .type = ARG_INT,
     AT(max_jobs_per_principal),
     .def = "100",
     .min = 1,
     .max = 1000000,
     .env = "RENDEZVOUSD_MAX_JOBS_PER_PRINCIPAL",
     .help = "jobs of one principal at once"},
    {.name = "max-nodes",
     .type = ARG_INT,
     AT(max_nodes),
     .def = "20000",
     .min = 1,
     .max = 100000,
     .env = "RENDEZVOUSD_MAX_NODES",
     .help = "nodes of one job, spares included"},
    {.name = "max-job-memory",
     BYTES,
     AT(max_job_memory),
     .def = "256M",
     .env = "RENDEZVOUSD_MAX_JOB_MEMORY",
     .help = "what the daemon remembers of one job; its keys (STORE.USE) have as much again"},
    ARG_GROUP("Output"),
    {.name = "log-level",
     .type = ARG_CHOICE,
     AT(log_level),
     .def = "warn",
     .choices = "error|warn|info|debug",
     .env = "RENDEZVOUSD_LOG_LEVEL",
     .help = "what to log on stderr; refused peers are warnings of module 'audit'"},
    ARG_END,
};

static const struct arg_section *const sections[] = {&manual_program_exit_codes, NULL};

const struct arg_program config_program = {
    .name = "rendezvousd",
    .usage = "[options]",
    .summary = "Rendezvous daemon and key-value store. Speaks Redis' RESP2, so redis-cli can talk to it.",
    .epilog = "SIGHUP: read token and TLS files again. SIGTERM, SIGINT: end in good order, exit 0.",
    .specs = specs,
    .operands = ARG_NO_OPERANDS,
    .sections = sections,
};

int config_next_address(const char **list, char *ret, int cap)
{
    size_t n = strcspn(*list, ",");
    if (**list == 0)
        return 0;
    if (n == 0 || n >= (size_t)cap)
        return -1;
    memcpy(ret, *list, n);
    ret[n] = 0;
    *list += n + ((*list)[n] == ',');
    return 1;
}

/* Is it a loopback address, or not an address? (Listening on the latter fails with an explanation.) */
static bool is_loopback(const char *host)
{
    uint8_t ip[ADDR_BYTES];
    return !addr_read(host, ip) || addr_is_loopback(ip);
}

static int check_bind(const struct config *c, struct err *e)
{
    char one[256];
    const char *list = c->bind;
    int rc, n = 0;
    while ((rc = config_next_address(&list, one, sizeof one)) > 0) {
        n++;
        if (!is_loopback(one) && !c->insecure && !c->token_file)
            return err_set(
                e, ERR_USAGE,
                "--bind %s: beyond loopback clients must authenticate: give --token-file FILE with lines 'principal "
                "secret' (mode 0600), or --insecure to serve whoever reaches the port",
                one);
    }
    return rc < 0 || n == 0 ? err_set(e, ERR_USAGE, "--bind '%s': expected addresses separated by commas", c->bind) : 0;
}

static int check_state(const struct config *c, struct err *e)
{
    static const char *const known[] = {"/", "file:///", "etcd://", "etcds://", "k8s://"};
    uint8_t ip[ADDR_BYTES];
    bool good = !c->state;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        good = good || strncmp(c->state, known[i], strlen(known[i])) == 0;
    if (!good)
        return err_set(
            e, ERR_USAGE,
            "--state '%s': expected a folder's absolute path, file:///DIR, etcd://, etcds:// or k8s:// (a Redis "
            "may lose what it has acknowledged)",
            c->state);
    if (c->state && c->state_dir)
        return err_set(e, ERR_USAGE, "--state and --state-dir contradict each other: jobs are kept in one place");
    if (c->advertise && !c->state)
        return err_set(e, ERR_USAGE, "--advertise without --state has no effect");
    if (c->advertise && !addr_read(c->advertise, ip))
        return err_set(e, ERR_USAGE, "--advertise '%s': expected a numeric address", c->advertise);
    return 0;
}

int config_check(const struct config *c, struct err *e)
{
    if (c->insecure && c->token_file)
        return err_set(e, ERR_USAGE, "--insecure and --token-file contradict each other");
    if (c->plain_auth && !c->token_file)
        return err_set(e, ERR_USAGE, "--allow-plain-auth without --token-file has no effect");
    if (c->operators && !c->token_file)
        return err_set(e, ERR_USAGE, "--operators without --token-file has no effect");
    if (!c->tls_cert && (c->tls_key || c->tls_client_ca || c->tls_only))
        return err_set(e, ERR_USAGE, "--%s without --tls-cert has no effect",
                       c->tls_key         ? "tls-key"
                       : c->tls_client_ca ? "tls-client-ca"
                                          : "tls-only");
    if (c->max_request > (int64_t)1 << 30 || c->max_output > (int64_t)1 << 30)
        return err_set(e, ERR_USAGE, "--%s: expected at most 1G",
                       c->max_request > (int64_t)1 << 30 ? "max-request" : "max-output");
    TRY(check_bind(c, e));
    TRY(check_state(c, e));
    return http_auth_check((int)c->http_port, c->http_bind, is_loopback(c->http_bind), c->http_token_file,
                           c->http_insecure, e);
}
