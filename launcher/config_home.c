/* What home_decide() wants to know about this machine: environment, files, its name. */
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/err.h"
#include "launcher/config.h"

#define LINE_CAP 1152

/* The settings of crun.conf: "key = value" lines; '#' begins a comment. */
struct settings {
    char rdzv_endpoint[HOME_ENDPOINT_MAX + 1], token_file[1024];
};

struct lookup {
    struct settings settings;
    char line[LINE_CAP], domain[HOME_HOST_MAX + 1];
};

static char *trim(char *p)
{
    p += strspn(p, " \t");
    size_t n = strlen(p);
    while (n && strchr(" \t\r\n", p[n - 1]))
        p[--n] = 0;
    return p;
}

static int take_setting(struct settings *s, const char *key, const char *value, struct err *e)
{
    char *field = strcmp(key, "rdzv_endpoint") == 0 ? s->rdzv_endpoint
                  : strcmp(key, "token_file") == 0  ? s->token_file
                                                    : NULL;
    if (!field)
        return err_set(e, ERR_USAGE, "no setting '%.64s': expected rdzv_endpoint or token_file", key);
    if (!*value || strlen(value) >= sizeof s->token_file)
        return err_set(e, ERR_USAGE, "%s: expected 1 to %zu characters", key, sizeof s->token_file - 1);
    if (!*field) /* the first file, and the first line in it, counts */
        strcpy(field, value);
    return 0;
}

static int read_settings(const char *path, struct settings *s, struct err *e)
{
    char line[LINE_CAP];
    int number = 0, rc = 0;
    FILE *f = fopen(path, "re");
    if (!f)
        return 0;
    while (rc == 0 && fgets(line, sizeof line, f)) {
        number++;
        line[strcspn(line, "#")] = 0;
        char *text = trim(line), *equals = strchr(text, '=');
        if (!*text)
            continue;
        if (!equals) {
            rc = err_set(e, ERR_USAGE, "expected key = value");
            break;
        }
        *equals = 0;
        rc = take_setting(s, trim(text), trim(equals + 1), e);
    }
    fclose(f);
    return rc < 0 ? err_wrap(e, "%s: line %d", path, number) : 0;
}

static int read_all_settings(struct settings *s, struct err *e)
{
    char path[1024];
    const char *home = getenv("HOME");
    if (home && *home && snprintf(path, sizeof path, "%s/.config/crun/crun.conf", home) < (int)sizeof path)
        TRY(read_settings(path, s, e));
    return read_settings("/etc/crun.conf", s, e);
}

static const char *look_env(void *arg, const char *name)
{
    return getenv(name);
}

static const char *look_first_line(void *arg, const char *path)
{
    struct lookup *l = arg;
    FILE *f = fopen(path, "re");
    const char *line = f ? fgets(l->line, sizeof l->line, f) : NULL;
    if (f)
        fclose(f);
    return line ? trim(l->line) : NULL;
}

static const char *look_configured(void *arg)
{
    struct lookup *l = arg;
    return l->settings.rdzv_endpoint[0] ? l->settings.rdzv_endpoint : NULL;
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
    struct lookup l = {.line = ""};
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
        .max_nodes = c->nnodes.max,
    };
    const bool alone = c->nnodes.max == 1 && !c->rdzv_endpoint && !c->master_addr && c->master_port < 0;
    if (!alone && !c->standalone)
        TRY(read_all_settings(&l.settings, e));
    TRY(home_decide(&typed, &look, &c->home, e));
    if (!c->token_file && l.settings.token_file[0]) {
        strcpy(c->token_path, l.settings.token_file);
        c->token_file = c->token_path;
    }
    return 0;
}
