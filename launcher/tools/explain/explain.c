/* `crun explain`: finds the meaning of an exit code or a message in the tables (explain.h). */
#include "launcher/tools/explain/explain.h"

#include <ctype.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/args/args.h"
#include "common/base/err.h"
#include "common/job/exitcode.h"
#include "launcher/base/ending.h"
#include "launcher/tools/explain/explain_table.h"

static const struct arg_spec specs[] = {ARG_END};

const struct arg_program explain_program = {
    .name = "crun explain",
    .usage = "CODE|TEXT... | --messages-markdown codes|TABLE",
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
    const char *name, *title;
    const struct explain_message *rows;
} tables[] = {
    {"hangs", "crun: workers that hang", explain_hangs},
    {"meet", "crun: how nodes meet", explain_meet},
    {"crun", "crun", explain_crun},
    {"rendezvousd", "rendezvousd and stores", explain_rendezvousd},
    {"options", "trainer: its options", explain_options},
    {"trainer", "trainer", explain_trainer},
    {"general", "all programs", explain_general},
};
#define TABLES (sizeof tables / sizeof *tables)

/* Get the next pattern at *p, and move *p behind it; false: there is none. */
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

/* --- a message that was cut short */

#define FEW_WORDS 4 /* a pattern of fewer words may match by chance */

static int words_of(const char *text, size_t n)
{
    int words = 0;
    size_t letters = 0;
    for (size_t i = 0; i <= n; i++) {
        letters = i < n && isalpha((unsigned char)text[i]) ? letters + 1 : 0;
        words += letters == 2;
    }
    return words;
}

/* How many words of the pattern the text ends with: the user may have pasted a part of the message. 0: too few. */
static int words_until_cut(const char *pattern, const char *text)
{
    char cut[260];
    for (size_t n = strlen(pattern); n > 0; n--) {
        if (pattern[n] && pattern[n] != ' ' && !strchr(".,:;", pattern[n]))
            continue;
        const int words = words_of(pattern, n);
        if (words < FEW_WORDS)
            return 0;
        snprintf(cut, sizeof cut, "*%.*s", (int)n, pattern);
        if (pattern[n - 1] != '*' && fnmatch(cut, text, 0) == 0)
            return words;
    }
    return 0;
}

/* The row of which the text has most words, or NULL. */
static const struct explain_message *find_cut(const char *text)
{
    char pattern[256], whole[4096];
    const struct explain_message *found = NULL;
    int most = 0;
    size_t n = strlen(text);
    while (n > 0 && (strchr(" .:;,", text[n - 1]) || (unsigned char)text[n - 1] >= 0x80)) /* "...", and that in UTF-8 */
        n--;
    snprintf(whole, sizeof whole, "%.*s", (int)n, text);
    for (size_t i = 0; i < TABLES; i++)
        for (const struct explain_message *m = tables[i].rows; m->patterns; m++)
            for (const char *p = m->patterns; next_pattern(&p, pattern, sizeof pattern);) {
                const int words = words_until_cut(pattern, whole);
                if (words > most) {
                    most = words;
                    found = m;
                }
            }
    return found;
}

static const struct explain_message *find_whole(const char *text)
{
    for (size_t i = 0; i < TABLES; i++)
        for (const struct explain_message *m = tables[i].rows; m->patterns; m++)
            if (matches(m, text))
                return m;
    return NULL;
}

static int explain_text(const char *text)
{
    const struct explain_message *m = find_whole(text);
    if (!m)
        m = find_cut(text);
    if (m) {
        printf("%s\nremedy: %s\n", m->means, m->remedy);
        return EXIT_OK;
    }
    printf("crun explain: '%s' is not known: expected an exit code from 0 to 255 or a message of crun, rendezvousd or "
           "trainer%s\n",
           text, explain_knows_trainer ? "" : "; this crun was built without trainer, and does not know its messages");
    return EXIT_FAIL;
}

/* Print a word, on the next line if it does not fit before column 120; returns the column after it. */
static int print_word(const char *word, size_t n, int column)
{
    const bool next = column + 1 + (int)n > 118;
    printf(next ? "\n  %.*s" : " %.*s", (int)n, word);
    return next ? 2 + (int)n : column + 1 + (int)n;
}

static int print_words(const char *text, int column)
{
    while (*text) {
        const size_t n = strcspn(text, " ");
        column = print_word(text, n, column);
        text += n + (text[n] == ' ');
    }
    return column;
}

/* Print one item: patterns, what they mean, and the remedy. */
static void print_row(const struct explain_message *m)
{
    char pattern[256], word[260];
    int column = 1;
    putchar('-');
    for (const char *p = m->patterns; next_pattern(&p, pattern, sizeof pattern);) {
        snprintf(word, sizeof word, "`%s`%s", pattern, *p ? "," : ":");
        column = print_word(word, strlen(word), column);
    }
    column = print_words(m->means, column);
    fputs(".", stdout);
    column = print_words("*Remedy:*", column + 1);
    print_words(m->remedy, column);
    puts(".");
}

static void print_code(const struct explain_code *c)
{
    printf("- **%d**:", c->code);
    int column = print_words(meaning_of(c->code), 10);
    fputs(".", stdout);
    column = print_words("*Remedy:*", column + 1);
    print_words(c->remedy, column);
    puts(".");
}

static void print_codes(void)
{
    puts("# Messages and exit codes\n\n"
         "Written by `./dev docs` from the tables of `crun explain`. `crun explain CODE` and\n"
         "`crun explain 'TEXT OF THE MESSAGE'` print the same. The messages are on pages of their own:\n");
    for (size_t i = 0; i < TABLES; i++)
        printf("- [%s](messages-%s.md)\n", tables[i].title, tables[i].name);
    puts("\n## Exit codes\n");
    for (const struct explain_code *c = explain_codes; c->code >= 0; c++)
        print_code(c);
    puts(
        "- **128 + N**: a worker died of signal N, or crun was stopped by it. *Remedy:* the failure report says which.\n"
        "- **any other**: a worker's own code, that of the first one that failed. *Remedy:* read what the worker says.\n"
        "\n[exit-codes.md](exit-codes.md) says which ending gives which code.");
}

static void print_table(size_t i)
{
    printf(
        "# Messages: %s\n\nWritten by `./dev docs` from the tables of `crun explain`. A text in `code` may stand anywhere "
        "in a\nmessage; `*` stands for anything. The first row that matches counts. If none does, it is the row of which "
        "the end of\nthe message has most words: a message may be cut short.\n\n",
        tables[i].title);
    for (const struct explain_message *m = tables[i].rows; m->patterns; m++)
        print_row(m);
}

/* which: "codes", or the name of a table. */
static int print_markdown(const char *which)
{
    if (strcmp(which, "codes") == 0) {
        print_codes();
        return EXIT_OK;
    }
    for (size_t i = 0; i < TABLES; i++)
        if (strcmp(which, tables[i].name) == 0) {
            print_table(i);
            return EXIT_OK;
        }
    fprintf(
        stderr,
        "crun explain: --messages-markdown '%s': expected codes, hangs, meet, crun, rendezvousd, options, trainer or "
        "general\n",
        which);
    return EXIT_USAGE_ERROR;
}

int explain_main(int argc, char **argv)
{
    struct arg_result args;
    struct err e;
    char text[4096] = "";
    int64_t code;
    if (argc == 3 && strcmp(argv[1], "--messages-markdown") == 0)
        return print_markdown(argv[2]);
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
