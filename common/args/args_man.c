/* Prints the option table as a manual page (roff, man macros). */
#include <ctype.h>
#include <string.h>

#include "common/args/args_internal.h"

/* Print a text, escaping what roff would interpret: '-' is a hyphen, a point begins a request, and some characters
 * are accents. */
static void print_text(FILE *out, const char *text)
{
    bool line_begins = true;
    for (; *text; text++) {
        const char *as = *text == '\\'   ? "\\e"
                         : *text == '-'  ? "\\-"
                         : *text == '\'' ? "\\(aq"
                         : *text == '`'  ? "\\(ga"
                         : *text == '~'  ? "\\(ti"
                         : *text == '^'  ? "\\(ha"
                                         : NULL;
        if (line_begins && *text == '.')
            fputs("\\&", out);
        if (as)
            fputs(as, out);
        else
            fputc(*text, out);
        line_begins = *text == '\n';
    }
}

static void print_bold(FILE *out, const char *text)
{
    fputs("\\fB", out);
    print_text(out, text);
    fputs("\\fR", out);
}

/* Name, letter, value. */
static void print_synopsis(const struct arg_spec *s, FILE *out)
{
    char name[128], letter[] = {'-', s->short_name, 0};
    if (s->short_name) {
        print_bold(out, letter);
        fputs(", ", out);
    }
    snprintf(name, sizeof name, "--%s%s", args_negatable(s) ? "[no-]" : "", s->name);
    print_bold(out, name);
    if (s->type != ARG_FLAG) {
        fputs(" \\fI", out);
        print_text(out, args_metavar(s));
        fputs("\\fR", out);
    }
    fputc('\n', out);
}

static void print_entry(const struct arg_spec *s, FILE *out)
{
    char rest[512];
    fputs(".TP\n", out);
    print_synopsis(s, out);
    print_text(out, s->help ? s->help : "");
    fputc('\n', out);
    if (args_remarks(s, rest, sizeof rest)[0]) {
        print_text(out, rest);
        fputc('\n', out);
    }
}

static void print_always(FILE *out)
{
    static const char *const options[][2] = {
        {"-h, --help", "print help and exit"},
        {"--version", "print the version and exit"},
        {"--print-config", "print every option's value and where it came from, and exit"},
        {"--completion bash|zsh", "print what the shell needs to complete options, and exit"},
    };
    fputs(".SS Help\n", out);
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        fputs(".TP\n", out);
        print_bold(out, options[i][0]);
        fputc('\n', out);
        print_text(out, options[i][1]);
        fputc('\n', out);
    }
}

static void print_files(const struct arg_program *p, FILE *out)
{
    if (!p->files)
        return;
    fputs(".SH FILES\n", out);
    for (const char *const *f = p->files; *f; f++) {
        fputs(".TP\n\\fI", out);
        print_text(out, *f);
        fputs("\\fR\n", out);
        print_text(out, f == p->files
                            ? "Settings: lines name = value, with the names of the long options. They count less "
                              "than the environment, and that less than the command line.\n"
                            : "The same; the file before counts more.\n");
    }
}

static void print_sections(const struct arg_program *p, FILE *out)
{
    for (const struct arg_section *const *s = p->sections; s && *s; s++) {
        fprintf(out, ".SH %s\n", (*s)->title);
        if ((*s)->intro) {
            print_text(out, (*s)->intro);
            fputc('\n', out);
        }
        for (const struct arg_row *r = (*s)->rows; r->term; r++) {
            fputs(".TP\n", out);
            print_bold(out, r->term);
            fputc('\n', out);
            print_text(out, r->text);
            fputc('\n', out);
        }
    }
}

/* Print the page's name ("trainer-predict") and the summary's first sentence: apropos(1) shows this line. */
static void print_name(const struct arg_program *p, FILE *out)
{
    char line[512];
    const char *text = p->summary ? p->summary : p->name, *end = strstr(text, ". ");
    size_t n = end ? (size_t)(end - text) : strlen(text);
    if (n > 0 && text[n - 1] == '.')
        n--;
    snprintf(line, sizeof line, "%s", p->name);
    for (char *c = line; *c; c++)
        *c = *c == ' ' ? '-' : *c;
    print_text(out, line);
    fputs(" \\- ", out);
    snprintf(line, sizeof line, "%.*s", (int)n, text);
    print_text(out, line);
    fputc('\n', out);
}

void args_man(const struct arg_program *p, const char *version, FILE *out)
{
    fputs(".TH ", out);
    for (const char *c = p->name; *c; c++)
        fputc(*c == ' ' ? '-' : toupper((unsigned char)*c), out);
    fprintf(out, " 1 \"\" \"%s\" \"\"\n.SH NAME\n", version);
    print_name(p, out);
    fputs(".SH SYNOPSIS\n", out);
    print_bold(out, p->name);
    fputc(' ', out);
    print_text(out, p->usage ? p->usage : "[options]");
    if (p->summary) {
        fputs("\n.SH DESCRIPTION\n", out);
        print_text(out, p->summary);
    }
    fputs("\n.SH OPTIONS\nEvery long option may be written with underscores, and cut short as long as it is "
          "unambiguous.\n",
          out);
    for (const struct arg_spec *s = p->specs; s->type != ARG_END_; s++) {
        if (s->type == ARG_HEADING) {
            fputs(".SS ", out);
            print_text(out, s->name);
            fputc('\n', out);
        } else if (!s->hidden) {
            print_entry(s, out);
        }
    }
    print_always(out);
    print_sections(p, out);
    print_files(p, out);
    if (p->epilog) {
        fputs(".SH NOTES\n", out);
        print_text(out, p->epilog);
        fputc('\n', out);
    }
}
