/* Maps the command lines of other trainers to options of this one. */
#include "worker/personality/personality.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "common/base/utf8.h"
#include "common/job/env_contract.h"
#include "worker/device/module/module.h"

/* Both tables in one. Lives as long as the program does: options point into it. */
struct merged {
    struct arg_spec specs[ARG_SPECS_MAX];
    char aliases[ARG_SPECS_MAX][256];
    char name[64];
    struct arg_program program;
    struct arg_result result;
};

/* Is name among those of a comma-separated list? */
static bool in_list(const char *list, const char *name, size_t n)
{
    for (const char *at = list; at && *at;) {
        const size_t len = strcspn(at, ",");
        if (len == n && strncmp(at, name, n) == 0)
            return true;
        at += len + (at[len] == ',');
    }
    return false;
}

static bool is_own(const struct personality *p, const char *name, size_t n)
{
    for (const struct arg_spec *s = p->own; s->type != ARG_END_; s++)
        if (s->type != ARG_HEADING &&
            ((strlen(s->name) == n && strncmp(s->name, name, n) == 0) || in_list(s->aliases, name, n)))
            return true;
    return false;
}

static bool takes_letter(const struct personality *p, char letter)
{
    for (const struct arg_spec *s = p->own; s->type != ARG_END_; s++)
        if (s->type != ARG_HEADING && s->short_name == letter)
            return true;
    for (const struct personality_default *d = p->defaults; d->option; d++)
        if (d->short_name == letter)
            return true;
    return false;
}

static const struct personality_default *default_of(const struct personality *p, const char *option)
{
    const struct personality_default *d = p->defaults;
    while (d->option && strcmp(d->option, option) != 0)
        d++;
    return d->option ? d : NULL;
}

/* The other names of an option of trainer that the personality does not use for something else. */
static const char *free_aliases(const struct personality *p, const struct arg_spec *s, const char *more, char out[256])
{
    const char *lists[] = {s->aliases, more};
    size_t used = 0;
    out[0] = 0;
    for (size_t i = 0; i < 2; i++)
        for (const char *at = lists[i]; at && *at;) {
            const size_t n = strcspn(at, ",");
            if (!is_own(p, at, n) && used + n + 2 < 256)
                used += (size_t)snprintf(out + used, 256 - used, "%s%.*s", used ? "," : "", (int)n, at);
            at += n + (at[n] == ',');
        }
    return used ? out : NULL;
}

static void adopt(const struct personality *p, struct arg_spec *s, char aliases[256])
{
    const struct personality_default *d = default_of(p, s->name);
    s->aliases = free_aliases(p, s, d ? d->aliases : NULL, aliases);
    if (s->short_name && takes_letter(p, s->short_name))
        s->short_name = 0;
    if (d && d->short_name)
        s->short_name = d->short_name;
    if (d && d->def)
        s->def = d->def;
    s->required = s->required && p->operands == ARG_NO_OPERANDS && !is_own(p, s->name, strlen(s->name));
}

/* Other trainers' options have other names, or units. */
static bool is_recipe(const struct personality *p, const struct arg_spec *s)
{
    return !p->recipes && strcmp(s->name, "recipe") == 0;
}

static void merge(struct merged *m, const struct personality *p)
{
    size_t n = 0;
    for (const struct arg_spec *s = p->own; s->type != ARG_END_; s++)
        m->specs[n++] = *s;
    for (const struct arg_spec *s = train_program.specs; s->type != ARG_END_; s++) {
        assert(n + 1 < ARG_SPECS_MAX);
        if (s->type != ARG_HEADING && (is_own(p, s->name, strlen(s->name)) || is_recipe(p, s)))
            continue;
        m->specs[n] = *s;
        if (s->type != ARG_HEADING)
            adopt(p, &m->specs[n], m->aliases[n]);
        n++;
    }
    m->specs[n] = (struct arg_spec)ARG_END;
    snprintf(m->name, sizeof m->name, "trainer %s", p->name);
    m->program = (struct arg_program){.name = m->name,
                                      .usage = p->usage,
                                      .summary = p->summary,
                                      .epilog = p->epilog,
                                      .specs = m->specs,
                                      .settings = p->recipes ? train_program.settings : NULL,
                                      .operands = p->operands};
}

/* -nr is --nr, where the table has an nr: getopt would read -n r. */
static void normalise(const struct personality *p, int argc, char **argv)
{
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        const char *name = argv[i] + 1;
        const size_t n = strcspn(name, "=");
        char *longer;
        if (argv[i][0] == '-' && n > 1 && name[0] != '-' && is_own(p, name, n) && asprintf(&longer, "-%s", argv[i]) > 0)
            argv[i] = longer; /* as long-lived as argv */
    }
}

/* What the command line comes to, in trainer's own words. */
static void print_outcome(const struct merged *m, const struct train_config *c)
{
    struct arg_result r = {0};
    for (size_t i = 0; train_program.specs[i].type != ARG_END_; i++) {
        const struct arg_spec *s = &train_program.specs[i];
        for (size_t k = 0; s->type != ARG_HEADING && m->specs[k].type != ARG_END_; k++)
            if (m->specs[k].type == s->type && m->specs[k].at == s->at) {
                r.source[i] = m->result.source[k];
                r.file_path[i] = m->result.file_path[k];
            }
    }
    args_print_config(&train_program, c, &r, stdout);
}

/* For docs/: the rest is trainer's. */
static void print_own(const struct personality *p, const struct merged *m)
{
    struct arg_program own = m->program;
    own.specs = p->own;
    args_markdown(&own, stdout);
}

int personality_parse(const struct personality *p, int argc, char **argv, const char *version,
                      struct train_config **ret, struct err *e)
{
    static struct merged m_; /* strings and specs that outlive this call point into it */
    struct merged *m = &m_;
    void *config = calloc(1, p->config_size);
    if (!config)
        return err_set(e, -ENOMEM, "no memory for a command line");
    merge(m, p);
    normalise(p, argc, argv);
    const struct personality_args a = {&m->program, &m->result, argc, argv};
    int rc = train_config_defaults(config, &m->result, e);
    if (rc == 0)
        rc = args_parse(&m->program, argc, argv, config, &m->result, e);
    if (rc == 0)
        train_config_note_given(config, &m->program, &m->result);
    const bool page = rc == 0 && (m->result.help || m->result.version);
    if (rc == 0 && !page)
        rc = p->apply(config, &a, e);
    if (rc == 0 && m->result.print_config) {
        print_outcome(m, config);
        rc = 1;
    } else if (rc == 0 && m->result.help && m->result.page == ARG_PAGE_MARKDOWN) {
        print_own(p, m);
        rc = 1;
    } else if (rc == 0 && args_answer(&m->program, version, config, &m->result, stdout)) {
        rc = 1;
    }
    if (rc != 0) {
        free(config);
        return rc;
    }
    *ret = config;
    return 0;
}

bool personality_given(const struct personality_args *a, const char *option)
{
    return args_source(a->program, a->result, option) != ARG_FROM_DEFAULT;
}

/* Once a machine that types the command, or once a job that a launcher starts. */
void personality_warn(const char *fmt, ...)
{
    struct env_contract env;
    va_list ap;
    if (env_contract_read(&env, NULL) == 0 && env.rank > 0)
        return;
    va_start(ap, fmt);
    fputs("trainer: ", stderr);
    printable_vline(stderr, fmt, ap);
    va_end(ap);
}

int personality_world(struct personality_world *ret, int nodes, int procs, struct err *e)
{
    struct env_contract env;
    TRY(env_contract_read(&env, e));
    const bool launched = env.world_size > 1;
    *ret = (struct personality_world){
        .launched = launched,
        .world = launched ? (int)env.world_size : nodes * procs,
        .nodes = launched ? (int)env.group_world_size : nodes,
        .procs = launched ? (int)env.local_world_size : procs,
    };
    if (ret->nodes < 1)
        ret->nodes = 1;
    return 0;
}

int personality_refuse(bool given, const char *option, const char *what, struct err *e)
{
    return given ? err_set(e, -ENOTSUP, "%s: %s is not supported", option, what) : 0;
}

void personality_say_slow(const struct personality_args *a)
{
    if (!personality_given(a, "device") && !cuda_likely())
        personality_warn("no GPU can be used here: using CPU, this will be slow");
}
