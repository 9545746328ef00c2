/* Prints the option table for people: --help, the table of the manual, --print-config. */
#include <inttypes.h>
#include <string.h>

#include "common/args/args_internal.h"

enum { WIDTH = 100, HELP_COLUMN = 34 };

const char *args_metavar(const struct arg_spec *s)
{
    if (s->metavar)
        return s->metavar;
    switch (s->type) {
    case ARG_INT:
        return "N";
    case ARG_REAL:
        return "X";
    case ARG_SECONDS:
        return "TIME";
    case ARG_CHOICE:
        return s->choices;
    default:
        return "TEXT";
    }
}

bool args_negatable(const struct arg_spec *s)
{
    return s->type == ARG_FLAG && strncmp(s->name, "no-", 3) != 0;
}

static char *synopsis(const struct arg_spec *s, char *out, size_t cap)
{
    char letter[8] = "";
    if (s->short_name)
        snprintf(letter, sizeof letter, "-%c, ", s->short_name);
    if (s->type == ARG_FLAG)
        snprintf(out, cap, "%s--%s%s", letter, args_negatable(s) ? "[no-]" : "", s->name);
    else
        snprintf(out, cap, "%s--%s %s", letter, s->name, args_metavar(s));
    return out;
}

/* Print words from *column on, breaking before WIDTH and indenting to HELP_COLUMN. */
static void print_words(FILE *out, const char *text, int *column)
{
    const char *item;
    for (size_t n; *text;) {
        while (*text == ' ')
            text++;
        if (!(n = strcspn(text, " ")))
            break;
        item = text;
        text += n;
        if (*column + 1 + (int)n > WIDTH && *column > HELP_COLUMN) {
            fprintf(out, "\n%*s", HELP_COLUMN, "");
            *column = HELP_COLUMN;
        }
        *column += fprintf(out, "%s%.*s", *column > HELP_COLUMN ? " " : "", (int)n, item);
    }
}

char *args_remarks(const struct arg_spec *s, char *out, size_t cap)
{
    char range[64];
    size_t n = 0;
    const char *gap = "(";
    out[0] = 0;
#define REMARK(...)                                                                                                    \
    do {                                                                                                               \
        n += (size_t)snprintf(n < cap ? out + n : NULL, n < cap ? cap - n : 0, "%s", gap);                             \
        n += (size_t)snprintf(n < cap ? out + n : NULL, n < cap ? cap - n : 0, __VA_ARGS__);                           \
        gap = "; ";                                                                                                    \
    } while (0)
    if (s->required)
        REMARK("required");
    if (s->def && s->def[0])
        REMARK("default %s", s->def);
    if (args_range_text(s, range, sizeof range)[0])
        REMARK("%s", range);
    const char *cursor = s->aliases, *item;
    for (size_t len; (len = args_next_item(&cursor, ',', &item)) > 0;)
        REMARK("also --%.*s", (int)len, item);
    cursor = s->env;
    for (size_t len; (len = args_next_item(&cursor, ',', &item)) > 0;)
        REMARK("$%.*s", (int)len, item);
#undef REMARK
    if (n > 0 && n + 1 < cap)
        memcpy(out + n, ")", 2);
    return out;
}

static void help_entry(FILE *out, const char *left, const char *help, const char *rest)
{
    int column = fprintf(out, "  %s", left);
    if (column + 2 > HELP_COLUMN) {
        fputc('\n', out);
        column = 0;
    }
    fprintf(out, "%*s", HELP_COLUMN - column, "");
    column = HELP_COLUMN;
    print_words(out, help ? help : "", &column);
    print_words(out, rest, &column);
    fputc('\n', out);
}

static char called[64];

void args_set_called(const char *argv0)
{
    const char *slash = strrchr(argv0, '/');
    snprintf(called, sizeof called, "%s", slash ? slash + 1 : argv0);
}

const char *args_called(const struct arg_program *p, char out[ARG_CALLED_MAX])
{
    snprintf(out, ARG_CALLED_MAX, "%s%.60s", called, p->name + (called[0] ? strcspn(p->name, " ") : 0));
    return out;
}

void args_help(const struct arg_program *p, FILE *out)
{
    char left[256], rest[512], name[ARG_CALLED_MAX];
    fprintf(out, "Usage: %s %s\n", args_called(p, name), p->usage ? p->usage : "[options]");
    if (p->summary)
        fprintf(out, "\n%s\n", p->summary);
    if (p->specs[0].type != ARG_HEADING)
        fprintf(out, "\nOptions:\n");
    for (const struct arg_spec *s = p->specs; s->type != ARG_END_; s++) {
        if (s->type == ARG_HEADING)
            fprintf(out, "\n%s:\n", s->name);
        else if (!s->hidden)
            help_entry(out, synopsis(s, left, sizeof left), s->help, args_remarks(s, rest, sizeof rest));
    }
    fprintf(out, "\nHelp:\n");
    help_entry(out, "-h, --help", "print this and exit", "");
    help_entry(out, "--version", "print the version and exit", "");
    help_entry(out, "--print-config", "print every option's value and where it came from, and exit", "");
    help_entry(out, "--completion bash|zsh", "print what the shell needs to complete options, and exit", "");
    if (p->epilog)
        fprintf(out, "\n%s\n", p->epilog);
}

/* Print a cell of a Markdown table; '|' is escaped, because it would end the cell. */
static void print_cell(FILE *out, const char *text)
{
    for (; *text; text++)
        fprintf(out, *text == '|' ? "\\|" : "%c", *text);
}

static void print_list_cell(FILE *out, const char *list, const char *prefix)
{
    const char *item, *gap = "";
    for (size_t n; (n = args_next_item(&list, ',', &item)) > 0; gap = ", ")
        fprintf(out, "%s`%s%.*s`", gap, prefix, (int)n, item);
}

static void markdown_row(const struct arg_spec *s, FILE *out)
{
    char text[256];
    fputs("| `", out);
    print_cell(out, synopsis(s, text, sizeof text));
    fputs("`", out);
    if (s->aliases) {
        fputs(", ", out);
        print_list_cell(out, s->aliases, "--");
    }
    fputs(" | ", out);
    print_list_cell(out, s->env, "");
    fputs(" | ", out);
    print_cell(out, s->required ? "required" : s->def ? s->def : "");
    fputs(" | ", out);
    print_cell(out, s->help ? s->help : "");
    if (args_range_text(s, text, sizeof text)[0])
        fprintf(out, " (%s)", text);
    fputs(" |\n", out);
}

void args_markdown(const struct arg_program *p, FILE *out)
{
    static const char columns[] = "| option | environment | default | meaning |\n|---|---|---|---|\n";
    bool open = false; /* a table has begun under the current heading */
    for (const struct arg_spec *s = p->specs; s->type != ARG_END_; s++) {
        if (s->type == ARG_HEADING) {
            fprintf(out, "%s### %s\n\n", s == p->specs ? "" : "\n", s->name);
            open = false;
        } else if (!s->hidden) {
            if (!open)
                fputs(columns, out);
            open = true;
            markdown_row(s, out);
        }
    }
}

static void print_choice(const struct arg_spec *s, int value, FILE *out)
{
    const char *cursor = s->choices, *item;
    for (size_t n; (n = args_next_item(&cursor, '|', &item)) > 0; value--)
        if (value == 0)
            fprintf(out, "%.*s", (int)n, item);
}

/* The shortest decimal that reads back as the same number. */
static void shortest(double v, const char *form, int digits, char *out, size_t cap)
{
    for (double back; digits <= 17; digits++) {
        snprintf(out, cap, form, digits, v);
        if (sscanf(out, "%lf", &back) == 1 && back == v)
            break;
    }
}

void args_real_text(double v, char out[ARG_REAL_MAX])
{
    shortest(v, "%.*g", 6, out, ARG_REAL_MAX);
}

/* Of seconds one without an exponent (parse_seconds()). */
static void print_real(double v, bool seconds, FILE *out)
{
    char text[400];
    shortest(v, seconds ? "%.*f" : "%.*g", seconds ? 0 : 6, text, sizeof text);
    fputs(text, out);
}

static void print_custom(const struct arg_spec *s, const void *field, const char *text, FILE *out)
{
    char printed[ARG_PRINT_MAX];
    if (s->print)
        s->print(field, printed, sizeof printed);
    fputs(s->print ? printed : text ? text : "", out);
}

static void print_value(const struct arg_spec *s, const void *config, const char *text, FILE *out)
{
    const void *field = (const char *)config + s->at;
    switch (s->type) {
    case ARG_FLAG:
        fputs(*(const bool *)field ? "on" : "off", out);
        break;
    case ARG_INT:
        fprintf(out, "%" PRId64, *(const int64_t *)field);
        break;
    case ARG_REAL:
    case ARG_SECONDS:
        print_real(*(const double *)field, s->type == ARG_SECONDS, out);
        break;
    case ARG_STRING: /* as it was given, even if the program keeps it elsewhere */
        if (text || *(const char *const *)field)
            fputs(text ? text : *(const char *const *)field, out);
        break;
    case ARG_CHOICE:
        print_choice(s, *(const int *)field, out);
        break;
    default: /* ARG_CUSTOM: only its owner can interpret the field */
        print_custom(s, field, text, out);
    }
}

static void print_source(const struct arg_spec *s, enum arg_source source, const char *path, FILE *out)
{
    char variable[128] = "";
    switch (source) {
    case ARG_FROM_DEFAULT:
        fputs("default", out);
        break;
    case ARG_FROM_FILE:
        fprintf(out, "%s%s", strchr(path, '/') ? "file " : "", path);
        break;
    case ARG_FROM_ENV:
        args_env_value(s, variable, sizeof variable);
        fprintf(out, "environment %s", variable);
        break;
    case ARG_FROM_COMMAND_LINE:
        fputs("command line", out);
        break;
    }
}

void args_print_config(const struct arg_program *p, const void *config, const struct arg_result *r, FILE *out)
{
    for (size_t i = 0; p->specs[i].type != ARG_END_; i++) {
        const struct arg_spec *s = &p->specs[i];
        enum arg_source source = r->source[i];
        if (s->type == ARG_HEADING || (s->hidden && source == ARG_FROM_DEFAULT))
            continue;
        fprintf(out, "%s = ", s->name);
        print_value(s, config, r->text[i], out);
        fputs("  # ", out);
        print_source(s, source, r->file_path[i], out);
        fputc('\n', out);
    }
}

static void print_page(const struct arg_program *p, const char *version, enum arg_page page, FILE *out)
{
    switch (page) {
    case ARG_PAGE_HELP:
        args_help(p, out);
        break;
    case ARG_PAGE_MARKDOWN:
        args_markdown(p, out);
        break;
    case ARG_PAGE_MAN:
        args_man(p, version, out);
        break;
    case ARG_PAGE_BASH:
        args_completion_bash(p, out);
        break;
    case ARG_PAGE_ZSH:
        args_completion_zsh(p, out);
        break;
    }
}

bool args_answer(const struct arg_program *p, const char *version, const void *config, const struct arg_result *r,
                 FILE *out)
{
    if (r->help)
        print_page(p, version, r->page, out);
    else if (r->version)
        fprintf(out, "%s\n", version);
    else if (r->print_config)
        args_print_config(p, config, r, out);
    return r->help || r->version || r->print_config;
}
