/* Makes the order for each host of -H: options, variables, secret, meeting point (remote_plan.h). */
#include "launcher/remote/remote_plan.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/err.h"
#include "common/job/slurm.h"
#include "common/net/addr.h"
#include "launcher/config/config.h"
#include "launcher/remote/remote_wire.h"
#include "launcher/rendezvous/addresses.h"

/* --- where the nodes meet */

/* A port that is free now; the agent that uses it is started at once. */
static int free_port(int fallback)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_ANY)};
    socklen_t n = sizeof a;
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const bool ok =
        fd >= 0 && bind(fd, (struct sockaddr *)&a, sizeof a) == 0 && getsockname(fd, (struct sockaddr *)&a, &n) == 0;
    if (fd >= 0)
        close(fd);
    return ok ? ntohs(a.sin_port) : fallback;
}

/* The address to use for this host: "localhost" means another machine to every other host. */
static int own_address(char *out, size_t cap, struct err *e)
{
    char all[1024];
    TRY(addresses_all(all, sizeof all, e));
    snprintf(out, cap, "%.*s", (int)strcspn(all, ","), all);
    return 0;
}

static int choose_endpoint(struct remote_plan *p, struct err *e)
{
    const struct host *first = &p->hosts.v[0];
    char host[HOME_HOST_MAX + 1];
    bool all_local = true;
    if (p->hosts.n == 1 && p->c->nnodes.max == 1)
        return 0;
    if (p->c->rdzv_endpoint || p->c->master_addr || p->c->rdzv_backend)
        return 0;
    for (int i = 0; i < p->hosts.n; i++)
        all_local = all_local && p->local[i];
    snprintf(host, sizeof host, "%s", all_local ? "127.0.0.1" : host_address(first));
    if (!all_local && addr_host_is_loopback(host))
        TRY(own_address(host, sizeof host, e));
    const int port = slurm_port(p->c->run_id);
    home_join(host, p->local[0] ? free_port(port) : port, p->endpoint, sizeof p->endpoint);
    return 0;
}

/* Choose the job's secret: what the options name, else the user's own, else a random one; it travels with the order. */
static int choose_token(struct remote_plan *p, struct err *e)
{
    struct auth_tokens tokens;
    enum auth_origin origin;
    const char *at = p->c->rdzv_endpoint;
    if (p->c->insecure || (p->hosts.n == 1 && !p->endpoint[0] && !at) || (at && strstr(at, "://")))
        return 0;
    TRY(auth_tokens_own(&tokens, p->c->token_file, &origin, e));
    p->token = tokens.v[0];
    auth_tokens_free(&tokens);
    return 0;
}

int remote_plan_make(struct remote_plan *p, const struct config *c, int argc, char **argv, int first_operand,
                     int abort_fd, struct err *e)
{
    *p = (struct remote_plan){.c = c, .argc = argc, .argv = argv, .first_operand = first_operand};
    if (c->hosts && c->hostfile)
        return err_set(e, ERR_USAGE, "-H and --hostfile both name the hosts: leave one of them out");
    if (c->standalone || c->node_rank >= 0)
        return err_set(e, ERR_USAGE, "%s contradicts -H, which numbers the nodes of the job",
                       c->standalone ? "--standalone" : "--node-rank");
    if (c->stdin_rank >= 0)
        return err_set(e, ERR_USAGE,
                       "--stdin-rank %d contradicts -H: agents on other hosts get orders on their standard input, and "
                       "workers read nothing",
                       (int)c->stdin_rank);
    TRY(c->hosts ? hosts_add_list(&p->hosts, c->hosts, "-H", e) : hosts_add_file(&p->hosts, c->hostfile, e));
    if (p->hosts.unused)
        fprintf(stderr, "crun: %s= in --hostfile has no effect\n", p->hosts.unused);
    if (p->hosts.n == 0)
        return err_set(e, ERR_USAGE, "--hostfile '%.300s' names no host", c->hostfile);
    if (c->nnodes_typed && c->nnodes.min > p->hosts.n)
        return err_set(e, ERR_USAGE, "--nnodes wants %d nodes, but only %d host%s named", c->nnodes.min, p->hosts.n,
                       p->hosts.n == 1 ? " is" : "s are");
    if (c->nnodes_typed && c->nnodes.max == c->nnodes.min && c->nnodes.max < p->hosts.n && !c->spare)
        return err_set(e, ERR_USAGE, "--nnodes takes %d nodes, but %d hosts are named: leave some out, or give --spare",
                       c->nnodes.max, p->hosts.n);
    p->local = calloc((size_t)p->hosts.n, sizeof *p->local);
    if (!p->local)
        return err_errno(e, ENOMEM, "hosts");
    remote_find_local(p->hosts.v, p->hosts.n, abort_fd, p->local);
    TRY(remote_shell_make(&p->shell, c->rsh, c->remote_crun, REMOTE_COMMAND, e));
    TRY(choose_endpoint(p, e));
    return choose_token(p, e);
}

void remote_plan_say_unused(const struct remote_plan *p, FILE *out)
{
    bool all = p->c->nproc_typed;
    for (int i = 0; i < p->hosts.n; i++)
        all = all && p->hosts.v[i].slots > 0;
    if (all)
        fputs("crun: --nproc-per-node has no effect: every host is named with a number of its own\n", out);
}

void remote_plan_free(struct remote_plan *p)
{
    hosts_free(&p->hosts);
    free(p->local);
    explicit_bzero(&p->token, sizeof p->token);
}

/* --- the order */

static int add_conf(const struct config *c, bool is_host, struct buf *b)
{
    size_t n;
    const char *pairs = rdzv_conf_pairs(c->rdzv_conf, &n);
    TRY(buf_addstr(b, "--rdzv-conf="));
    TRY(buf_add(b, pairs, n));
    return buf_printf(b, "%sis_host=%d%c", n > 0 ? "," : "", is_host, '\0');
}

int remote_plan_options(const struct remote_plan *p, int i, struct buf *b)
{
    const struct config *c = p->c;
    const struct host *h = &p->hosts.v[i];
    if (!c->nnodes_typed)
        TRY(buf_printf(b, "--nnodes=%d%c", p->hosts.n, '\0'));
    if (c->nnodes_typed &&
        c->nnodes.max < p->hosts.n) /* the program runs on other hosts; this crun only returns their exit code */
        TRY(buf_printf(b, "--spare-exit-code=0%c", '\0'));
    if (h->slots > 0)
        TRY(buf_printf(b, "--nproc-per-node=%d%c", h->slots, '\0'));
    TRY(buf_printf(b, "--rdzv-id=%s%c", c->run_id, '\0'));
    if (p->hosts.n > 1)
        TRY(buf_printf(b, "--node-rank=%d%c", i, '\0'));
    if (p->endpoint[0]) {
        TRY(buf_printf(b, "--rdzv-endpoint=%s%c", p->endpoint, '\0'));
        TRY(add_conf(c, i == 0, b));
    }
    if (c->log.color == LOG_COLOR_AUTO && isatty(STDOUT_FILENO) && !getenv("NO_COLOR"))
        TRY(buf_printf(b, "--color=always%c", '\0'));
    return 0;
}

static int encode_options(const struct remote_plan *p, int i, struct buf *b)
{
    struct buf own = {.max = REMOTE_ORDER_MAX};
    int rc = remote_plan_options(p, i, &own);
    for (size_t at = 0; rc == 0 && at < own.len; at += strlen(own.data + at) + 1)
        rc = remote_encode(b, REMOTE_ARGUMENT, own.data + at);
    buf_free(&own);
    return rc;
}

static int encode_variable(struct buf *b, const char *name)
{
    const char *value = getenv(name), first = REMOTE_VARIABLE;
    TRY(buf_add(b, &first, 1));
    TRY(buf_addstr(b, name));
    TRY(buf_addstr(b, "="));
    return buf_add(b, value, strlen(value) + 1);
}

/* Add crun's own settings from this environment to the order; variables that -x names are for the workers. */
static int encode_settings(struct buf *b)
{
    static const char *const ours[] = {"CRUN_HOSTS",  "CRUN_HOSTFILE",   "CRUN_RSH",    "CRUN_REMOTE_CRUN",
                                       "CRUN_EXPORT", "CRUN_TOKEN_FILE", "CRUN_DRY_RUN"};
    for (const struct arg_spec *s = config_program.specs; s->type != ARG_END_; s++) {
        char names[256], *rest = NULL;
        snprintf(names, sizeof names, "%s", s->env ? s->env : "");
        for (char *name = strtok_r(names, ",", &rest); name; name = strtok_r(NULL, ",", &rest)) {
            bool own = false;
            for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
                own = own || strcmp(name, ours[i]) == 0;
            if (!own && getenv(name))
                TRY(encode_variable(b, name));
        }
    }
    return 0;
}

/* Add variables given by name only, with their value here, if they are set. */
static int encode_exports(const struct config_exports *x, struct buf *b)
{
    char name[256];
    for (int i = 0; i < x->n; i++) {
        if (strchr(x->v[i], '=')) {
            TRY(remote_encode(b, REMOTE_VARIABLE, x->v[i]));
            continue;
        }
        snprintf(name, sizeof name, "%.*s", (int)strcspn(x->v[i], ","), x->v[i]);
        if (getenv(name))
            TRY(encode_variable(b, name));
    }
    return 0;
}

static int encode_order(const struct remote_plan *p, int i, struct buf *b)
{
    char text[REMOTE_PATH_MAX];
    int options = p->first_operand;
    if (options > 1 && strcmp(p->argv[options - 1], "--") == 0)
        options--;
    if (getcwd(text, sizeof text))
        TRY(remote_encode(b, REMOTE_FOLDER, text));
    TRY(encode_settings(b));
    TRY(encode_exports(&p->c->exports, b));
    for (int k = 0; k < options; k++)
        TRY(remote_encode(b, REMOTE_ARGUMENT, p->argv[k]));
    TRY(encode_options(p, i, b));
    snprintf(text, sizeof text, "%s %s\n", p->token.principal, p->token.secret);
    int rc = p->token.principal[0] ? remote_encode(b, REMOTE_TOKEN, text) : 0;
    explicit_bzero(text, sizeof text);
    if (rc == 0)
        rc = remote_encode(b, REMOTE_SIGNALS, "");
    if (rc == 0)
        rc = remote_encode(b, REMOTE_ARGUMENT, "--");
    for (int k = p->first_operand; k < p->argc && rc == 0; k++)
        rc = remote_encode(b, REMOTE_ARGUMENT, p->argv[k]);
    return rc;
}

int remote_plan_order(const struct remote_plan *p, int i, struct buf *b, struct err *e)
{
    struct buf words;
    buf_init(&words, REMOTE_ORDER_MAX);
    int rc = encode_order(p, i, &words);
    if (rc == 0)
        rc = buf_printf(b, REMOTE_MAGIC " %zu\n", words.len);
    if (rc == 0)
        rc = buf_add(b, words.data, words.len);
    if (words.data)
        explicit_bzero(words.data, words.cap);
    buf_free(&words);
    if (rc < 0)
        return err_set(e, ERR_USAGE, "arguments and variables for the hosts: expected at most %u bytes",
                       REMOTE_ORDER_MAX);
    return 0;
}
