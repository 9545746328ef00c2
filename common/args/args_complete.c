/* Prints the completion of options, for bash and zsh, from the option table. */
#include <string.h>

#include "common/args/args_internal.h"

static const char *const always_flags[][2] = {
    {"help", "print help"}, {"version", "print the version"}, {"print-config", "print values and their sources"}};

/* Print the name of the shell function: no blanks, no dashes. */
static void print_function(const struct arg_program *p, FILE *out)
{
    fputc('_', out);
    for (const char *c = p->name; *c; c++)
        fputc(*c == ' ' || *c == '-' ? '_' : *c, out);
}

#define EACH_VISIBLE(s, p)                                                                                             \
    const struct arg_spec *s = (p)->specs;                                                                             \
    s->type != ARG_END_;                                                                                               \
    s++

static bool shown(const struct arg_spec *s)
{
    return s->type != ARG_HEADING && !s->hidden;
}

/* Call print for the name and each alias. */
static void each_name(const struct arg_spec *s, void (*print)(const struct arg_spec *, const char *, int, FILE *),
                      FILE *out)
{
    const char *lists[] = {s->name, s->aliases}, *item;
    for (size_t l = 0; l < 2; l++)
        for (size_t n; (n = args_next_item(&lists[l], ',', &item)) > 0;)
            print(s, item, (int)n, out);
}

/* --- bash */

static void bash_word(const struct arg_spec *s, const char *name, int n, FILE *out)
{
    fprintf(out, " --%.*s", n, name);
    if (args_negatable(s))
        fprintf(out, " --no-%.*s", n, name);
}

static void bash_pattern(const struct arg_spec *s, const char *name, int n, FILE *out)
{
    fprintf(out, "|--%.*s", n, name);
    if (memchr(name, '-', (size_t)n)) {
        fputs("|--", out);
        for (int i = 0; i < n; i++)
            fputc(name[i] == '-' ? '_' : name[i], out);
    }
}

/* Print the options that take their value from the next word, as a pattern of `case`. */
static void bash_valued(const struct arg_program *p, FILE *out)
{
    fputs("--completion", out);
    for (EACH_VISIBLE(s, p)) {
        if (!shown(s) || s->type == ARG_FLAG)
            continue;
        if (s->short_name)
            fprintf(out, "|-%c", s->short_name);
        each_name(s, bash_pattern, out);
    }
}

static void bash_choices(const struct arg_program *p, FILE *out)
{
    for (EACH_VISIBLE(s, p)) {
        if (!shown(s) || s->type != ARG_CHOICE)
            continue;
        fputs("    ''", out); /* each pattern begins with '|' */
        each_name(s, bash_pattern, out);
        fputs(") COMPREPLY=($(compgen -W '", out);
        for (const char *c = s->choices; *c; c++)
            fputc(*c == '|' ? ' ' : *c, out);
        fputs("' -- \"$cur\")); return ;;\n", out);
    }
    fputs("    --completion) COMPREPLY=($(compgen -W 'bash zsh' -- \"$cur\")); return ;;\n", out);
}

static void bash_program(const struct arg_program *p, FILE *out)
{
    fputs("        *)\n            ", out);
    if (p->operands == ARG_STOP_AT_FIRST)
        fputs("declare -F _command_offset >/dev/null && _command_offset $i\n            return", out);
    else
        fputs(":", out);
    fputs(" ;;\n", out);
}

/* "status" of "crun status". */
static const char *last_word(const struct arg_program *p)
{
    const char *blank = strrchr(p->name, ' ');
    return blank ? blank + 1 : p->name;
}

static void print_commands(const struct arg_program *p, FILE *out)
{
    for (const struct arg_program *const *c = p->commands; *c; c++)
        fprintf(out, "%s%s", c == p->commands ? "" : " ", last_word(*c));
}

static void bash_words(const struct arg_program *p, FILE *out)
{
    fputs("    case $cur in\n    -*) COMPREPLY=($(compgen -W '", out);
    for (size_t i = 0; i < sizeof always_flags / sizeof *always_flags; i++)
        fprintf(out, "%s--%s", i ? " " : "", always_flags[i][0]);
    fputs(" --completion", out);
    for (EACH_VISIBLE(s, p))
        if (shown(s))
            each_name(s, bash_word, out);
    fputs("' -- \"$cur\")) ;;\n", out);
    if (p->operands == ARG_STOP_AT_FIRST) {
        fputs("    *) COMPREPLY=($(compgen -c -- \"$cur\"))", out);
        if (p->commands) {
            fputs("\n       [ $COMP_CWORD = 1 ] && COMPREPLY+=($(compgen -W '", out);
            print_commands(p, out);
            fputs("' -- \"$cur\"))", out);
        }
        fputs(" ;;\n", out);
    }
    fputs("    esac\n", out);
}

/* Words after a command are completed by that command's function, which sees its own name as an operand. */
static void bash_dispatch(const struct arg_program *p, FILE *out)
{
    fputs("    [ $COMP_CWORD -gt 1 ] && case ${COMP_WORDS[1]} in\n", out);
    for (const struct arg_program *const *c = p->commands; *c; c++) {
        fprintf(out, "    %s) ", last_word(*c));
        print_function(*c, out);
        fputs("; return ;;\n", out);
    }
    fputs("    esac\n", out);
}

static void bash_function(const struct arg_program *p, FILE *out)
{
    print_function(p, out);
    fputs("()\n{\n", out);
    if (p->commands)
        bash_dispatch(p, out);
    fputs("    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} i\n"
          "    COMPREPLY=()\n"
          "    # --name=value comes as three words\n"
          "    if [ \"$cur\" = = ]; then cur=; elif [ \"$prev\" = = ]; then prev=${COMP_WORDS[COMP_CWORD - 2]}; fi\n"
          "    for ((i = 1; i < COMP_CWORD; i++)); do\n"
          "        case ${COMP_WORDS[i]} in\n"
          "        =) ((i++)) ;;\n        ",
          out);
    bash_valued(p, out);
    fputs(") [ \"${COMP_WORDS[i + 1]}\" = = ] || ((i++)) ;;\n        -*) ;;\n", out);
    bash_program(p, out);
    fputs("        esac\n    done\n    case $prev in\n", out);
    bash_choices(p, out);
    fputs("    ", out);
    bash_valued(p, out);
    fputs(") return ;;\n    esac\n", out);
    bash_words(p, out);
    fputs("}\n", out);
}

void args_completion_bash(const struct arg_program *p, FILE *out)
{
    char name[ARG_CALLED_MAX];
    fprintf(out, "# Completion of %s for bash, written by %s --completion bash\n", p->name, p->name);
    for (const struct arg_program *const *c = p->commands; c && *c; c++)
        bash_function(*c, out);
    bash_function(p, out);
    fputs("complete -o bashdefault -o default -F ", out);
    print_function(p, out);
    fprintf(out, " %s\n", args_called(p, name));
}

/* --- zsh */

/* Print a text for '...[text]:text:', where quotes, brackets and colons must be escaped. */
static void zsh_text(const char *text, FILE *out)
{
    for (; *text; text++)
        if (*text == '\'')
            fputs("'\\''", out);
        else if (strchr("[]:\\", *text))
            fprintf(out, "\\%c", *text);
        else
            fputc(*text, out);
}

static void zsh_value(const struct arg_spec *s, FILE *out)
{
    fputc(':', out);
    zsh_text(s->type == ARG_CHOICE ? "choice" : args_metavar(s), out);
    fputc(':', out);
    if (s->type == ARG_CHOICE) {
        fputc('(', out);
        for (const char *c = s->choices; *c; c++)
            fputc(*c == '|' ? ' ' : *c, out);
        fputc(')', out);
    } else {
        fputs("_default", out);
    }
}

static void zsh_option(const struct arg_spec *s, const char *name, int n, FILE *out)
{
    fprintf(out, "    '--%.*s%s[", n, name, s->type == ARG_FLAG ? "" : "=");
    zsh_text(s->help ? s->help : "", out);
    fputc(']', out);
    if (s->type != ARG_FLAG)
        zsh_value(s, out);
    fputs("' \\\n", out);
    if (args_negatable(s))
        fprintf(out, "    '--no-%.*s[not --%.*s]' \\\n", n, name, n, name);
}

static void zsh_letter(const struct arg_spec *s, FILE *out)
{
    if (!s->short_name)
        return;
    fprintf(out, "    '-%c%s[", s->short_name, s->type == ARG_FLAG ? "" : "+");
    zsh_text(s->help ? s->help : "", out);
    fputc(']', out);
    if (s->type != ARG_FLAG)
        zsh_value(s, out);
    fputs("' \\\n", out);
}

static void zsh_arguments(const struct arg_program *p, FILE *out)
{
    fputs("_arguments -S \\\n", out);
    for (EACH_VISIBLE(s, p)) {
        if (!shown(s))
            continue;
        zsh_letter(s, out);
        each_name(s, zsh_option, out);
    }
    for (size_t i = 0; i < sizeof always_flags / sizeof *always_flags; i++)
        fprintf(out, "    '(- *)--%s[%s]' \\\n", always_flags[i][0], always_flags[i][1]);
    fputs("    '(- *)--completion=[print completion for a shell]:shell:(bash zsh)' \\\n", out);
    if (p->operands == ARG_STOP_AT_FIRST && p->commands) {
        fputs("    '(-)1:program:{_alternative \"commands:command:(", out);
        print_commands(p, out);
        fputs(")\" \"programs:program:_command_names -e\"}' '*::arguments:_normal'\n", out);
    } else
        fputs(p->operands == ARG_STOP_AT_FIRST ? "    '(-)1:program:_command_names -e' '*::arguments:_normal'\n"
              : p->operands == ARG_OPERANDS    ? "    '*:file:_files'\n"
                                               : "    && return 0\n",
              out);
}

/* Words after a command are completed by that command's function. */
static void zsh_dispatch(const struct arg_program *p, FILE *out)
{
    fputs("(( CURRENT > 2 )) && case $words[2] in\n", out);
    for (const struct arg_program *const *c = p->commands; *c; c++) {
        fprintf(out, "%s)\nshift words\n(( CURRENT-- ))\n", last_word(*c));
        zsh_arguments(*c, out);
        fputs("return\n;;\n", out);
    }
    fputs("esac\n", out);
}

void args_completion_zsh(const struct arg_program *p, FILE *out)
{
    char name[ARG_CALLED_MAX];
    fprintf(out, "#compdef %s\n# Completion of %s for zsh, written by %s --completion zsh\n", args_called(p, name),
            p->name, p->name);
    if (p->commands)
        zsh_dispatch(p, out);
    zsh_arguments(p, out);
}
