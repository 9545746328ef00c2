#include "launcher/commands/explain.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/args/args.h"
#include "common/base/err.h"
#include "common/job/exitcode.h"
#include "launcher/base/ending.h"
#include "launcher/commands/explain_table.h"

static const struct arg_spec specs[] = {ARG_END};

const struct arg_program explain_program = {
    .name = "crun explain",
    .usage = "CODE|TEXT... | --messages-markdown",
    .summary = "Explains an exit code or a message of crun, rendezvousd or trainer, and what to do about it.",
    .specs = specs,
    .operands = ARG_OPERANDS,
};

static const char *meaning_of(int code)
{
    static const struct {
        int code;
        const char *text;
    } known[] = {
#define X(name, value, text) {value, text},
        EXIT_CODES(X)
#undef X
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].code == code)
            return known[i].text;
    return NULL;
}

static int explain_code(int code)
{
    char name[32];
    for (const struct explain_code *c = explain_codes; c->code >= 0; c++)
        if (c->code == code) {
            printf("%d: %s\nremedy: %s\n", code, meaning_of(code), c->remedy);
            return EXIT_OK;
        }
    if (code > 128 && code < 128 + 65)
        printf("%d: %s (128 + %d): a worker died of it, or crun was stopped by it; the failure report says which\n"
               "remedy: read the report%s\n",
               code, signal_text(code - 128, name, sizeof name), code - 128,
               code == 137 ? "; SIGKILL is most often the kernel's, for want of memory: dmesg tells" : "");
    else
        printf("%d: a worker's own exit code, that of the first one that failed\nremedy: read what the worker says\n",
               code);
    return EXIT_OK;
}

static const struct {
    const char *title;
    const struct explain_message *rows;
} tables[] = {
    {"crun", explain_crun},
    {"rendezvousd and stores", explain_rendezvousd},
    {"trainer", explain_trainer},
    {"All programs", explain_general},
};
#define TABLES (sizeof tables / sizeof *tables)

/* The next of the patterns at *p, or false. *p is moved behind it. */
static bool next_pattern(const char **p, char *pattern, size_t size)
{
    if (!**p)
        return false;
    const size_t n = strcspn(*p, "\n");
    snprintf(pattern, size, "%.*s", (int)n, *p);
    *p += n + ((*p)[n] == '\n');
    return true;
}

static bool matches(const struct explain_message *m, const char *text)
{
    char pattern[256], anywhere[260];
    for (const char *p = m->patterns; next_pattern(&p, pattern, sizeof pattern);) {
        snprintf(anywhere, sizeof anywhere, "*%s*", pattern);
        if (fnmatch(anywhere, text, 0) == 0)
            return true;
    }
    return false;
}

static int explain_text(const char *text)
{
    for (size_t i = 0; i < TABLES; i++)
        for (const struct explain_message *m = tables[i].rows; m->patterns; m++)
            if (matches(m, text)) {
                printf("%s\nremedy: %s\n", m->means, m->remedy);
                return EXIT_OK;
            }
    printf("crun explain: '%s' is not known: expected an exit code from 0 to 255 or a message of crun, rendezvousd or "
           "trainer\n",
           text);
    return EXIT_FAIL;
}

/* Words of text, after column, wrapped before column 120; returns the column. */
static int print_words(const char *text, int column)
{
    while (*text) {
        const size_t n = strcspn(text, " ");
        if (column + 1 + (int)n > 118) {
            printf("\n  %.*s", (int)n, text);
            column = 2 + (int)n;
        } else {
            printf(" %.*s", (int)n, text);
            column += 1 + (int)n;
        }
        text += n + (text[n] == ' ');
    }
    return column;
}

/* One item: the patterns, a line each, then what they mean, then the remedy. */
static void print_row(const struct explain_message *m)
{
    char pattern[256];
    const char *begin = "-";
    for (const char *p = m->patterns; next_pattern(&p, pattern, sizeof pattern); begin = " ")
        printf("%s `%s`%s\n", begin, pattern, *p ? "\\" : "");
    fputs("  means:", stdout);
    print_words(m->means, 8);
    fputs("\n  remedy:", stdout);
    print_words(m->remedy, 9);
    puts("");
}

static void print_code(const struct explain_code *c)
{
    printf("- **%d**:", c->code);
    print_words(meaning_of(c->code), 10);
    fputs("\n  remedy:", stdout);
    print_words(c->remedy, 9);
    puts("");
}

static int print_markdown(void)
{
    puts(
        "# Messages and exit codes\n\n"
        "Made by `crun explain --messages-markdown`; `crun explain CODE` and `crun explain 'TEXT OF THE MESSAGE'` print\n"
        "the same. A pattern may stand anywhere in a message; `*` stands for anything. The first pattern that matches\n"
        "counts, from the top of this page.\n\n"
        "## Exit codes\n");
    for (const struct explain_code *c = explain_codes; c->code >= 0; c++)
        print_code(c);
    puts("- **128 + N**: a worker died of signal N, or crun was stopped by it; the failure report says which\n"
         "- **any other**: a worker's own code, that of the first one that failed; read what the worker says");
    for (size_t i = 0; i < TABLES; i++) {
        printf("\n## %s\n\n", tables[i].title);
        for (const struct explain_message *m = tables[i].rows; m->patterns; m++)
            print_row(m);
    }
    return EXIT_OK;
}

int explain_main(int argc, char **argv)
{
    struct arg_result args;
    struct err e;
    char text[4096] = "";
    int64_t code;
    if (argc == 2 && strcmp(argv[1], "--messages-markdown") == 0)
        return print_markdown();
    const bool is_message = argc > 1 && strncmp(argv[1], "--", 2) == 0 && strchr(argv[1], ' '); /* of an option */
    char none;
    if (!is_message && args_parse(&explain_program, argc, argv, &none, &args, &e) < 0) {
        fprintf(stderr, "crun explain: %s\n", e.text);
        return EXIT_USAGE_ERROR;
    }
    if (!is_message && args_answer(&explain_program, "crun " CRUN_VERSION, &none, &args, stdout))
        return EXIT_OK;
    for (int i = is_message ? 1 : args.first_operand; i < argc; i++) {
        const size_t n = strlen(text);
        snprintf(text + n, sizeof text - n, "%s%s", n ? " " : "", argv[i]);
    }
    if (!text[0]) {
        fprintf(stderr, "crun explain: nothing to explain: expected an exit code or a message\n");
        return EXIT_USAGE_ERROR;
    }
    return parse_i64(text, "", 0, 255, &code, &e) == 0 ? explain_code((int)code) : explain_text(text);
}
