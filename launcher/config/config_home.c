/* What home_decide() wants to know about this machine: environment, files, its name. */
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/auth/auth.h"
#include "common/base/err.h"
#include "common/base/file.h"
#include "launcher/config/config.h"

#define LINE_CAP 1152

struct lookup {
    const char *configured;
    char line[LINE_CAP], domain[HOME_HOST_MAX + 1];
};

static const char *look_env(void *arg, const char *name)
{
    return getenv(name);
}

static const char *look_first_line(void *arg, const char *path)
{
    struct lookup *l = arg;
    return file_read_line(l->line, sizeof l->line, "%s", path) < 0 ? NULL : line_trim(l->line);
}

static const char *look_configured(void *arg)
{
    struct lookup *l = arg;
    return l->configured;
}

static const char *look_domain(void *arg)
{
    struct lookup *l = arg;
    char name[256] = "";
    struct addrinfo *found = NULL;
    const struct addrinfo hints = {.ai_flags = AI_CANONNAME, .ai_socktype = SOCK_STREAM};
    gethostname(name, sizeof name - 1);
    if (getaddrinfo(name, NULL, &hints, &found) != 0)
        return NULL;
    const char *dot = found->ai_canonname ? strchr(found->ai_canonname, '.') : NULL;
    if (dot)
        snprintf(l->domain, sizeof l->domain, "%s", dot + 1);
    freeaddrinfo(found);
    return dot ? l->domain : NULL;
}

int config_find_home(struct config *c, struct err *e)
{
    struct lookup l = {.configured = c->configured_endpoint};
    const struct home_look look = {look_env, look_first_line, look_configured, look_domain, &l};
    const struct home_typed typed = {
        .backend = c->rdzv_backend,
        .endpoint = c->rdzv_endpoint,
        .run_id = c->run_id,
        .master_addr = c->master_addr && *c->master_addr ? c->master_addr : NULL,
        .master_port = (int)c->master_port,
        .node_rank = (int)(c->node_rank >= 0 ? c->node_rank : c->conf.rank),
        .is_host = c->conf.is_host,
        .store_type_file = c->conf.store_type_file,
        .standalone = c->standalone,
        .endpoint_is_near = c->endpoint_typed,
        .spare = c->spare,
        .min_nodes = c->nnodes.min,
        .max_nodes = c->nnodes.max,
    };
    TRY(home_decide(&typed, &look, &c->home, e));
    if (!c->token_file && !c->insecure && c->home.kind != HOME_LOCAL && !getenv(AUTH_VARIABLE))
        c->token_file = c->configured_token;
    return 0;
}
