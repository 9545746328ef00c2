/* Parses a command line: the table of specs becomes a table for getopt_long, which does the work; the error messages
 * are ours.
 *
 * - Each long name gives two entries (dashes, underscores) with one value, so getopt sees no ambiguity between them.
 * - Values read from the command line go into the config at once, so that each one is checked, even if a later one
 *   wins.
 * - Then options that were not given are filled from the environment, the settings files or the default. */
#include "common/args/args.h"

#include <assert.h>
#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

#include "common/args/args_internal.h"
#include "common/args/nearest.h"
#include "common/base/array.h"
#include "common/base/err.h"

/* What getopt_long returns for a long option; short ones return their letter. */
enum { VAL_HELP = 256, VAL_VERSION, VAL_PRINT_CONFIG, VAL_MARKDOWN, VAL_MAN, VAL_COMPLETION, VAL_SPECS = 1024 };

struct long_names {
    struct option *v; /* ends with a zeroed entry */
    size_t n, cap;
};

static int spec_val(size_t index, bool negated)
{
    return VAL_SPECS + 2 * (int)index + negated;
}

static void free_names(struct long_names *l)
{
    for (size_t i = 0; i < l->n; i++)
        free((char *)l->v[i].name);
    free(l->v);
}

static int add_entry(struct long_names *l, char *name, int has_arg, int val)
{
    if (!name)
        return -ENOMEM;
    if (ARRAY_RESERVE(l->v, l->cap, l->n + 2) < 0) {
        free(name);
        return -ENOMEM;
    }
    l->v[l->n++] = (struct option){.name = name, .has_arg = has_arg, .val = val};
    l->v[l->n] = (struct option){0};
    return 0;
}

/* Both spellings of prefix + name. */
static int add_name(struct long_names *l, const char *prefix, const char *name, size_t len, int has_arg, int val)
{
    char *dashes = NULL;
    if (asprintf(&dashes, "%s%.*s", prefix, (int)len, name) < 0)
        return -ENOMEM;
    bool same = !strchr(dashes, '-');
    TRY(add_entry(l, dashes, has_arg, val));
    if (same)
        return 0;
    char *underscores = strdup(dashes);
    for (char *p = underscores; p && *p; p++)
        if (*p == '-')
            *p = '_';
    return add_entry(l, underscores, has_arg, val);
}

static int add_spec(struct long_names *l, const struct arg_spec *s, size_t index)
{
    bool flag = s->type == ARG_FLAG;
    int has_arg = flag ? optional_argument : required_argument;
    const char *lists[] = {s->name, s->aliases}, *item;
    for (size_t i = 0; i < 2; i++) {
        const char *cursor = lists[i];
        for (size_t n; (n = args_next_item(&cursor, ',', &item)) > 0;) {
            TRY(add_name(l, "", item, n, has_arg, spec_val(index, false)));
            if (args_negatable(s))
                TRY(add_name(l, "no-", item, n, no_argument, spec_val(index, true)));
        }
    }
    return 0;
}

static int add_all(struct long_names *l, const struct arg_program *p)
{
    TRY(add_name(l, "", "help", 4, no_argument, VAL_HELP));
    TRY(add_name(l, "", "version", 7, no_argument, VAL_VERSION));
    TRY(add_name(l, "", "print-config", 12, no_argument, VAL_PRINT_CONFIG));
    TRY(add_name(l, "", "options-markdown", 16, no_argument, VAL_MARKDOWN));
    TRY(add_name(l, "", "options-man", 11, no_argument, VAL_MAN));
    TRY(add_name(l, "", "completion", 10, required_argument, VAL_COMPLETION));
    TRY(add_name(l, "", "print-completion", 16, required_argument, VAL_COMPLETION));
    for (size_t i = 0; p->specs[i].type != ARG_END_; i++) {
        assert(i < ARG_SPECS_MAX);
        if (p->specs[i].type != ARG_HEADING)
            TRY(add_spec(l, &p->specs[i], i));
    }
    return 0;
}

/* Build getopt's string of short options: "+:" or ":" (so that a missing argument is told from an unknown option),
 * then the letters. */
static void short_options(const struct arg_program *p, char out[2 * ARG_SPECS_MAX + 8])
{
    char *o = out;
    bool h_taken = false;
    if (p->operands == ARG_STOP_AT_FIRST)
        *o++ = '+';
    *o++ = ':';
    for (const struct arg_spec *s = p->specs; s->type != ARG_END_; s++) {
        if (!s->short_name)
            continue;
        h_taken |= s->short_name == 'h';
        *o++ = s->short_name;
        if (s->type != ARG_FLAG)
            *o++ = ':';
    }
    if (!h_taken)
        *o++ = 'h';
    *o = 0;
}

/* The spec for a value that getopt_long returned; NULL for --help and the like. */
static const struct arg_spec *spec_of(const struct arg_program *p, int val, bool *negated)
{
    *negated = val >= VAL_SPECS && (val & 1);
    if (val >= VAL_SPECS)
        return &p->specs[(val - VAL_SPECS) / 2];
    for (const struct arg_spec *s = p->specs; s->type != ARG_END_; s++)
        if (s->short_name && s->short_name == val)
            return s;
    return NULL;
}

static const char *nearest_option(const struct arg_program *p, const struct long_names *l, const char *name, size_t n)
{
    struct nearest near;
    nearest_begin(&near, name, n);
    for (size_t i = 0; i < l->n; i++) {
        bool negated;
        const struct arg_spec *s = spec_of(p, l->v[i].val, &negated);
        if (!s || !s->hidden)
            nearest_try(&near, l->v[i].name);
    }
    return near.word;
}

/* getopt_long reports only an error: find out whether the name fits no option or several, and explain. arg: the
 * element of argv. */
static int explain_long(const struct arg_program *p, const struct long_names *l, const char *arg, struct err *e)
{
    const char *name = arg + 2;
    size_t n = strcspn(name, "=");
    char list[256];
    size_t used = 0;
    int found = 0, last_val = 0;
    list[0] = 0;
    for (size_t i = 0; i < l->n; i++)
        if (n > 0 && strncmp(l->v[i].name, name, n) == 0 && l->v[i].val != last_val) {
            found++;
            last_val = l->v[i].val; /* entries of one option are adjacent */
            if (used < sizeof list)
                used +=
                    (size_t)snprintf(list + used, sizeof list - used, "%s--%s", found > 1 ? ", " : "", l->v[i].name);
        }
    if (found > 1)
        return err_set(e, ERR_USAGE, "option '--%.*s' is ambiguous: %s", (int)n, name, list);
    for (const struct arg_row *r = p->gone; r && r->term; r++)
        if (strlen(r->term) == n && memcmp(r->term, name, n) == 0)
            return err_set(e, ERR_USAGE, "option '--%s' is gone: %s", r->term, r->text);
    const char *guess = nearest_option(p, l, name, n);
    if (guess)
        return err_set(e, ERR_USAGE, "unknown option '--%.*s', did you mean '--%s'?", (int)n, name, guess);
    return err_set(e, ERR_USAGE, "unknown option '--%.*s' (see --help)", (int)n, name);
}

static bool is_preferred(const struct arg_program *p, const struct arg_spec *s)
{
    const char *cursor = s->env, *item;
    const size_t n = strlen(p->preferred_env);
    for (size_t len; (len = args_next_item(&cursor, ',', &item)) > 0;)
        if (len > n && strncmp(item, p->preferred_env, n) == 0)
            return true;
    return false;
}

/* The whole name of the one preferred option that begins with these n bytes; NULL: none, or several. */
static const char *preferred_name(const struct arg_program *p, const struct long_names *l, const char *prefix, size_t n)
{
    const char *found = NULL;
    int val = 0;
    for (size_t i = 0; i < l->n; i++) {
        bool negated;
        const struct arg_spec *s = spec_of(p, l->v[i].val, &negated);
        if (!s || negated || strncmp(l->v[i].name, prefix, n) != 0 || !is_preferred(p, s))
            continue;
        if (found && l->v[i].val != val)
            return NULL;
        found = l->v[i].name;
        val = l->v[i].val;
    }
    return found;
}

/* getopt_long rejected the element before optind. 1: it is an ambiguous prefix of a preferred option; its full name
 * is in argv now and must be parsed again. argv keeps the new text. */
static int complete_prefix(const struct arg_program *p, const struct long_names *l, int c, char **argv)
{
    char *arg = argv[optind - 1], *whole;
    const size_t n = strncmp(arg, "--", 2) == 0 ? strcspn(arg + 2, "=") : 0;
    const char *name = p->preferred_env && c == '?' && optopt == 0 && n > 0 ? preferred_name(p, l, arg + 2, n) : NULL;
    if (!name || strlen(name) == n)
        return 0;
    if (asprintf(&whole, "--%s%s", name, arg + 2 + n) < 0)
        return -ENOMEM;
    argv[--optind] = whole;
    return 1;
}

/* getopt_long returned '?' or ':'. */
static int explain(const struct arg_program *p, const struct long_names *l, int c, char **argv, struct err *e)
{
    bool negated;
    const struct arg_spec *s = optopt ? spec_of(p, optopt, &negated) : NULL;
    if (c == ':' && optopt < 256)
        return err_set(e, ERR_USAGE, "option '-%c' (--%s) needs a value", optopt, s->name);
    if (c == ':')
        return err_set(e, ERR_USAGE, "option '--%s' needs a value", s ? s->name : "completion");
    if (optopt >= 256)
        return err_set(e, ERR_USAGE, "option '%s' takes no value", argv[optind - 1]);
    if (optopt)
        return err_set(e, ERR_USAGE, "unknown option '-%c' (long options begin with two dashes; see --help)", optopt);
    return explain_long(p, l, argv[optind - 1], e);
}

/* "-t=3" is "-t 3". */
static const char *value_of(int c, char **argv)
{
    const bool is_attached =
        c < VAL_HELP && optarg && optarg > argv[optind - 1] && optarg <= argv[optind - 1] + strlen(argv[optind - 1]);
    return is_attached && optarg[0] == '=' ? optarg + 1 : optarg;
}

static int take(const struct arg_program *p, const struct arg_spec *s, bool negated, const char *value, void *config,
                struct arg_result *r, struct err *e)
{
    char what[128];
    const char *text = s->type != ARG_FLAG ? value : negated ? "off" : value ? value : "on";
    snprintf(what, sizeof what, "--%s", s->name);
    TRY(args_set_value(s, what, text, config, e));
    r->source[s - p->specs] = ARG_FROM_COMMAND_LINE;
    r->text[s - p->specs] = text;
    return 0;
}

/* Handle an option that ends the parsing, such as --help. */
static int take_page(int c, struct arg_result *r, struct err *e)
{
    if (c == VAL_VERSION) {
        r->version = true;
        return 0;
    }
    r->help = true;
    r->page = c == VAL_MARKDOWN ? ARG_PAGE_MARKDOWN : c == VAL_MAN ? ARG_PAGE_MAN : ARG_PAGE_HELP;
    if (c == VAL_COMPLETION) {
        r->page = strcmp(optarg, "zsh") == 0 ? ARG_PAGE_ZSH : ARG_PAGE_BASH;
        if (strcmp(optarg, "bash") != 0 && r->page != ARG_PAGE_ZSH)
            return err_set(e, ERR_USAGE, "--completion: '%s' is not one of bash|zsh", optarg);
    }
    return 0;
}

/* Unless a "--" came before PROGRAM, drop one directly behind it: argv becomes `-- PROGRAM args...`. Options ended
 * at argv[optind]; before: optind before the last call of getopt_long. */
static void drop_dashes(int argc, char **argv, int before)
{
    const bool dropped = before < optind && strcmp(argv[optind - 1], "--") == 0;
    if (dropped || optind + 1 >= argc || strcmp(argv[optind + 1], "--") != 0)
        return;
    argv[optind + 1] = argv[optind];
    argv[optind++] = (char *)"--";
}

static int read_command_line(const struct arg_program *p, const struct long_names *l, int argc, char **argv,
                             void *config, struct arg_result *r, struct err *e)
{
    char letters[2 * ARG_SPECS_MAX + 8];
    int c, before = 1;
    short_options(p, letters);
    optind = 0; /* glibc: restart, and read the string of short options again */
    opterr = 0;
    for (; (c = getopt_long(argc, argv, letters, l->v, NULL)) != -1; before = optind) {
        bool negated;
        const struct arg_spec *s;
        if (c == '?' || c == ':') {
            const int rc = complete_prefix(p, l, c, argv);
            if (rc == 1)
                continue;
            return rc < 0 ? err_set(e, rc, "out of memory while reading the command line") : explain(p, l, c, argv, e);
        }
        if ((s = spec_of(p, c, &negated)))
            TRY(take(p, s, negated, value_of(c, argv), config, r, e));
        else if (c == VAL_PRINT_CONFIG)
            r->print_config = true;
        else
            return take_page(c, r, e);
    }
    if (p->operands == ARG_STOP_AT_FIRST)
        drop_dashes(argc, argv, before);
    r->first_operand = optind;
    if (p->operands == ARG_NO_OPERANDS && optind < argc)
        return err_set(e, ERR_USAGE, "unexpected argument '%s': %s takes options only", argv[optind], p->name);
    return 0;
}

/* torchrun's flag variables: any number but 0 means on. */
static const char *flag_of_number(const char *text)
{
    int64_t number;
    return parse_i64(text, "", INT64_MIN, INT64_MAX, &number, NULL) < 0 ? text : number ? "1" : "0";
}

/* Fill in one option that the command line did not give: from the environment, the settings files, or the default. */
static int fill(const struct arg_program *p, size_t i, void *config, struct arg_result *r, struct err *e)
{
    const struct arg_spec *s = &p->specs[i];
    char variable[128], place[1200];
    const char *text = args_env_value(s, variable, sizeof variable);
    if (text) {
        r->source[i] = ARG_FROM_ENV;
        r->text[i] = text;
        return args_set_value(s, variable, s->type == ARG_FLAG ? flag_of_number(text) : text, config, e);
    }
    if (r->source[i] == ARG_FROM_FILE) {
        snprintf(place, sizeof place, "%s: line %d: %s", r->file_path[i], r->file_line[i], s->name);
        return args_set_value(s, place, r->text[i], config, e);
    }
    if (s->def) {
        r->text[i] = s->def;
        snprintf(variable, sizeof variable, "default of --%s", s->name);
        return args_set_value(s, variable, s->def, config, e);
    }
    if (s->required && !r->print_config)
        return err_set(e, ERR_USAGE, "option '--%s' is required: %s", s->name, s->help ? s->help : "it has no default");
    return 0;
}

int args_parse(const struct arg_program *p, int argc, char **argv, void *config, struct arg_result *r, struct err *e)
{
    struct long_names names = {0};
    memset(r, 0, sizeof *r);
    int rc = add_all(&names, p);
    if (rc < 0)
        err_set(e, rc, "out of memory while reading the command line");
    else
        rc = read_command_line(p, &names, argc, argv, config, r, e);
    free_names(&names);
    if (rc < 0 || r->help || r->version)
        return rc;
    TRY(args_read_settings(p, config, r, e));
    TRY(args_read_files(p, r, e));
    for (size_t i = 0; p->specs[i].type != ARG_END_; i++)
        if (p->specs[i].type != ARG_HEADING && r->source[i] != ARG_FROM_COMMAND_LINE)
            TRY(fill(p, i, config, r, e));
    return 0;
}

enum arg_source args_source(const struct arg_program *p, const struct arg_result *r, const char *name)
{
    for (size_t i = 0; p->specs[i].type != ARG_END_; i++)
        if (p->specs[i].type != ARG_HEADING && strcmp(p->specs[i].name, name) == 0)
            return r->source[i];
    assert(!"an option of this program");
    return ARG_FROM_DEFAULT;
}
