/* --torchrun-compat: torchrun's defaults and formats where crun's differ from them. What is typed counts more. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "launcher/config/config.h"

static bool is_default(const struct arg_result *r, const char *name)
{
    return args_source(&config_program, r, name) == ARG_FROM_DEFAULT;
}

/* As torchrun: if files are asked for, but not where, in a folder of a random name (log_layout.h chooses it). */
static void choose_log_dir(struct config *c)
{
    const char *base = getenv("TMPDIR");
    snprintf(c->compat_dir, sizeof c->compat_dir, "%s/torchelastic_XXXXXX", base && *base ? base : "/tmp");
    c->log.default_dir = c->compat_dir;
}

/* Whoever says how it is to look wants one. */
static void choose_prefix(struct config *c, const struct arg_result *r)
{
    const bool is_styled =
        !is_default(r, "log-line-prefix-template") || args_source(&config_program, r, "color") == ARG_FROM_COMMAND_LINE;
    const bool several = c->nproc > 1 || c->nnodes.max > 1;
    c->log.prefix = is_styled || (c->torchrun_compat ? log_conf_tees(&c->log) : several);
    c->log.prefix_by_default = !is_styled;
}

void config_apply_compat(struct config *c, const struct arg_result *r, const char *self)
{
    const char *slash = strrchr(self, '/');
    if (is_default(r, "torchrun-compat"))
        c->torchrun_compat = strcmp(slash ? slash + 1 : self, "torchrun") == 0;
    if (is_default(r, "log-prefix"))
        choose_prefix(c, r);
    if (!c->torchrun_compat)
        return;
    c->how.python = true;
    c->how.as_templates = true;
    c->log.only_named = true;
    if (is_default(r, "log-line-prefix-template"))
        c->log.template = "[${role_name}${local_rank}]:";
    if (is_default(r, "log-layout"))
        c->log.layout = LOG_LAYOUT_TORCHRUN;
    if (is_default(r, "log-dir"))
        choose_log_dir(c);
    if (is_default(r, "shutdown-timeout"))
        c->stops.shutdown = 30;
}
