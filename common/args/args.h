/* Command lines from one table per program.
 *
 * The table yields: parsing (getopt_long), environment variables, settings files, --help, --print-config, the option
 * table in docs/, the manual page and the completion of shells. Precedence: command line, environment (an empty
 * variable counts as unset), settings files, default. Every long option exists with dashes and with underscores
 * (--nproc-per-node, --nproc_per_node); unambiguous prefixes are accepted; an unknown option is refused with the
 * nearest known one ("did you mean ...?"). A number may have blanks around it, and the value of a short option may
 * follow '=', as in Python's argparse.
 *
 *     static const struct arg_spec specs[] = {
 *         ARG_GROUP("Launch"),
 *         {.name = "nproc-per-node", .type = ARG_INT, .at = offsetof(struct config, nproc), .def = "1",
 *          .min = 1, .max = 4096, .env = "CRUN_NPROC_PER_NODE", .help = "workers to start"},
 *         ARG_END,
 *     }; */
#ifndef CRUN_COMMON_ARGS_H
#define CRUN_COMMON_ARGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct err;

enum arg_type {
    ARG_END_,    /* ends the table */
    ARG_HEADING, /* name is a heading of --help */
    ARG_FLAG, /* bool: --x, --x=on|off|true|false|1|0|yes|no, --no-x (not if x begins with "no-"); environment: the same
               * words, and any whole number: 0 is off */
    ARG_INT,  /* int64_t in [min, max] (min == max == 0: any) */
    ARG_REAL, /* double in [min, max] (min == max == 0: any finite) */
    ARG_SECONDS, /* double seconds >= 0: "30", "1.5", "500ms", "10m", "2h", "1d"; in [min, max] unless both are 0 */
    ARG_STRING,  /* const char *; points into argv, the environment or the table */
    ARG_CHOICE,  /* int: index into choices ("auto|bf16|off") */
    ARG_CUSTOM,  /* parse() decides */
};

struct arg_spec {
    const char *name; /* canonical long name, dashes; no leading "--" */
    char short_name;  /* 0: none */
    enum arg_type type;
    size_t at;           /* offset of the field in the config struct */
    const char *def;     /* default as text, as a user would type it; NULL: the field is zeroed */
    const char *choices; /* ARG_CHOICE: "a|b|c" */
    double min, max;     /* inclusive; max INFINITY: no upper bound */
    const char *env;     /* comma-separated environment variables, first found wins; NULL: none */
    const char *aliases; /* comma-separated further long names; NULL: none */
    const char *metavar; /* shown in --help; NULL: by type */
    const char *help;    /* one or two sentences, no newline */
    bool required;
    bool hidden; /* not in --help or docs */
    /* ARG_CUSTOM: called for each occurrence on the command line, else once for the environment or the default. *e
     * says what is wrong with the text ("expected MIN[:MAX]"); the caller puts the option's name and the text in
     * front. */
    int (*parse)(const char *text, void *field, struct err *e);
    /* ARG_CUSTOM: write the field as a user would type it; "": not given. NULL: --print-config shows what was typed. */
    void (*print)(const void *field, char *out, size_t cap);
};

#define ARG_GROUP(text)                                                                                                \
    {                                                                                                                  \
        .type = ARG_HEADING, .name = (text)                                                                            \
    }
#define ARG_END                                                                                                        \
    {                                                                                                                  \
        .type = ARG_END_                                                                                               \
    }

enum arg_operands {
    ARG_NO_OPERANDS, /* an operand is an error */
    ARG_OPERANDS,    /* operands anywhere (permuted) */
    /* Options end at the first operand: `crun [options] PROGRAM args...`. As in Python's argparse, one "--" is
     * dropped, before PROGRAM or directly behind it: argv is reordered to `-- PROGRAM args...`. */
    ARG_STOP_AT_FIRST,
};

/* A further section of the manual page: rows until one without a term. */
struct arg_row {
    const char *term, *text;
};

struct arg_section {
    const char *title; /* "EXIT STATUS" */
    const char *intro; /* a sentence before the rows, or NULL */
    const struct arg_row *rows;
};

/* Settings that a program has by itself: the text of a settings file, and its name, without '/', for --print-config and
 * errors ("recipe NAME"). */
struct arg_settings {
    const char *name, *text;
};

struct arg_program {
    const char *name;    /* "crun", "trainer make-data" */
    const char *usage;   /* "[options] PROGRAM [args...]" */
    const char *summary; /* a sentence or two */
    const char *epilog;  /* NULL or text after the options */
    const struct arg_spec *specs;
    enum arg_operands operands;
    /* If a prefix fits several options, it means the one that has a variable which begins with this text, if there
     * is exactly one such option: so command lines of another program keep their meaning. NULL: no option is
     * preferred. */
    const char *preferred_env;
    /* Options of earlier versions, without dashes, and what to use instead; until a row without a term. NULL: none. */
    const struct arg_row *gone;
    /* settings files, the first one has priority; NULL-terminated; '~' in front means $HOME. NULL: none */
    const char *const *files;
    /* Called after the command line was read, with what that gave: *ret becomes settings that go before those of files;
     * NULL, as it was: there are none. NULL: never. */
    int (*settings)(const void *config, struct arg_settings *ret, struct err *e);
    /* the commands of `NAME COMMAND ...`, by whole name, for completion; NULL-terminated; NULL: none */
    const struct arg_program *const *commands;
    const struct arg_section *const *sections; /* of the manual page, NULL-terminated; NULL: none */
};

enum {
    ARG_SPECS_MAX = 256,      /* headings included */
    ARG_FILE_TEXT_MAX = 8192, /* bytes of values */
    ARG_PRINT_MAX = 512,      /* bytes of a value that arg_spec.print writes */
    ARG_NUMBER_MAX = 64,      /* bytes of a number as typed */
    ARG_REAL_MAX = 32         /* bytes of a number as args_real_text() writes it */
};

/* Where a value came from; one per spec, in table order, for --print-config. */
enum arg_source { ARG_FROM_DEFAULT, ARG_FROM_FILE, ARG_FROM_ENV, ARG_FROM_COMMAND_LINE };

/* What is printed instead of doing anything. */
enum arg_page { ARG_PAGE_HELP, ARG_PAGE_MARKDOWN, ARG_PAGE_MAN, ARG_PAGE_BASH, ARG_PAGE_ZSH };

struct arg_result {
    int first_operand;                /* index into argv, which args_parse() may have reordered */
    bool help, version, print_config; /* args_answer() acts on these; required options are not checked if one is set */
    enum arg_page page;               /* the page that `help` asks for */
    unsigned char source[ARG_SPECS_MAX]; /* enum arg_source by index of the spec */
    /* the value as it was written; NULL: none. Valid as long as argv, environ and this struct */
    const char *text[ARG_SPECS_MAX];
    const char *file_path[ARG_SPECS_MAX]; /* ARG_FROM_FILE: where it was found */
    int file_line[ARG_SPECS_MAX];
    char file_text[ARG_FILE_TEXT_MAX];
    size_t file_text_used;
};

/* Fill *config (zeroed by the caller) from argv and environ. Returns 0 or ERR_USAGE with *e naming option, value and
 * expectation. argv[0] is skipped (for `trainer make-data ...` pass argv + 1). --help/-h, --version, --print-config,
 * --completion bash|zsh, --options-markdown and --options-man are always known; all but --print-config end the
 * parsing, and *config is then incomplete. An option given twice: the last one wins. Strings from settings files
 * point into *r, which must outlive *config. May be called again, but not from two threads at once (getopt). */
int args_parse(const struct arg_program *p, int argc, char **argv, void *config, struct arg_result *r, struct err *e);

/* Where the value of an option of the table came from; name: its canonical name. */
enum arg_source args_source(const struct arg_program *p, const struct arg_result *r, const char *name);

void args_help(const struct arg_program *p, FILE *out);
/* From now on help and completions show the name that the user typed, argv[0], in place of the first word of a
 * program's own name ("crun-launcher" for "crun" in "crun status"). Call once, from main(). */
void args_set_called(const char *argv0);
#define ARG_CALLED_MAX 128
const char *args_called(const struct arg_program *p, char out[ARG_CALLED_MAX]); /* p->name with it; returns out */
void args_markdown(const struct arg_program *p, FILE *out);                     /* table for docs/ */
void args_print_config(const struct arg_program *p, const void *config, const struct arg_result *r,
                       FILE *out); /* name = value  # source */

/* The shortest decimal that reads back as the same number: for arg_spec.print. */
void args_real_text(double v, char out[ARG_REAL_MAX]);

/* Write every value into the object `out`, by the option's name, wherever it came from. ARG_CUSTOM as arg_spec.print
 * writes it, null if that is empty; left out if there is no print(). */
struct cJSON;
void args_json(const struct arg_program *p, const void *config, struct cJSON *out);

void args_man(const struct arg_program *p, const char *version, FILE *out); /* roff */
void args_completion_bash(const struct arg_program *p, FILE *out);
void args_completion_zsh(const struct arg_program *p, FILE *out);

/* Print what --help, --version ("<version>"), --print-config and the like asked for. False: none was given, and the
 * program goes on. */
bool args_answer(const struct arg_program *p, const char *version, const void *config, const struct arg_result *r,
                 FILE *out);

/* A number's text without the blanks that a file or a variable may have left around it: a part of text, or a copy in
 * out. Longer texts are returned as they are. */
const char *args_without_blanks(const char *text, char out[ARG_NUMBER_MAX]);

/* Number parsers with checks; other modules may use them. what: the name used in the error. */
int parse_i64(const char *text, const char *what, int64_t min, int64_t max, int64_t *ret, struct err *e);
int parse_f64(const char *text, const char *what, double min, double max, double *ret, struct err *e);
/* Parse decimal digits with at most one point, then a unit as for ARG_SECONDS. */
int parse_seconds(const char *text, const char *what, double *ret, struct err *e);
/* Parse a whole number, with K, M, G or T behind it for powers of 1024; for ARG_CUSTOM. */
int parse_bytes(const char *text, int64_t min, int64_t *ret, struct err *e);

/* Strip the blanks around a line, and its end; they are overwritten. */
char *line_trim(char *line);

#endif
