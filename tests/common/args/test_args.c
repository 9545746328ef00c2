/* The option table: one small program with every kind of option, and command lines with what must come of them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/args/args.h"
#include "common/base/err.h"

struct config {
    int64_t nproc, restarts;
    double rate, timeout;
    bool amp, resume;
    const char *data, *run_id;
    int mode;
    struct {
        int64_t min, max;
    } nnodes;
};

static int parse_range(const char *text, void *field, struct err *e)
{
    int64_t *v = field;
    char *end;
    v[0] = v[1] = strtoll(text, &end, 10);
    if (end != text && *end == ':')
        v[1] = strtoll(end + 1, &end, 10);
    if (end == text || *end)
        return err_set(e, ERR_USAGE, "expected MIN[:MAX]");
    return 0;
}

#define AT(field) .at = offsetof(struct config, field)
static const struct arg_spec specs[] = {
    ARG_GROUP("Launch"),
    {.name = "nproc-per-node",
     .short_name = 'n',
     .type = ARG_INT,
     AT(nproc),
     .def = "1",
     .min = 1,
     .max = 4096,
     .env = "TEST_NPROC,TEST_NPROC_OLD",
     .help = "workers to start"},
    {.name = "nnodes",
     .type = ARG_CUSTOM,
     AT(nnodes),
     .def = "1:1",
     .metavar = "MIN[:MAX]",
     .parse = parse_range,
     .help = "nodes of the job"},
    {.name = "max-restarts", .type = ARG_INT, AT(restarts), .max = INFINITY, .def = "0", .help = "restarts allowed"},
    {.name = "run-id",
     .type = ARG_STRING,
     AT(run_id),
     .env = "TEST_RUN_ID",
     .aliases = "rdzv-id,job-name",
     .help = "id of the job"},
    ARG_GROUP("Training"),
    {.name = "base-learning-rate",
     .short_name = 'r',
     .type = ARG_REAL,
     AT(rate),
     .def = "0.1",
     .min = 0,
     .max = 100,
     .help = "rate after the warm-up"},
    {.name = "timeout", .type = ARG_SECONDS, AT(timeout), .def = "30", .env = "TEST_TIMEOUT", .help = "patience"},
    {.name = "amp", .short_name = 'a', .type = ARG_FLAG, AT(amp), .env = "TEST_AMP", .help = "mixed precision"},
    {.name = "resume", .type = ARG_FLAG, AT(resume), .def = "on", .help = "go on from the last checkpoint"},
    {.name = "mode", .type = ARG_CHOICE, AT(mode), .choices = "auto|bf16|off", .def = "auto", .help = "number format"},
    {.name = "train-data", .type = ARG_STRING, AT(data), .required = true, .help = "folder of images"},
    {.name = "secret-knob", .type = ARG_INT, .hidden = true, AT(restarts)},
    ARG_END,
};

static const struct arg_program stop_program = {.name = "launch",
                                                .specs = specs,
                                                .operands = ARG_STOP_AT_FIRST,
                                                .usage = "[options] PROGRAM [args...]",
                                                .summary = "Launches.",
                                                .epilog = "See the manual."};
static const struct arg_program any_program = {.name = "any", .specs = specs, .operands = ARG_OPERANDS};
static const struct arg_program none_program = {.name = "none", .specs = specs, .operands = ARG_NO_OPERANDS};

static struct config config;
static struct arg_result result;
static struct err error;

enum { MAX_WORDS = 16 };
static char line[512], *words[MAX_WORDS + 1];

/* Split at spaces and parse. The words stay until the next call: strings of config point into them. */
static int parse(const struct arg_program *p, const char *text)
{
    int argc = 0;
    memset(&config, 0, sizeof config);
    memset(&error, 0, sizeof error);
    snprintf(line, sizeof line, "prog %s", text);
    for (char *save, *w = strtok_r(line, " ", &save); w; w = strtok_r(NULL, " ", &save))
        words[argc++] = w;
    words[argc] = NULL;
    return args_parse(p, argc, words, &config, &result, &error);
}

static int parse_ok(const char *text)
{
    char full[512];
    snprintf(full, sizeof full, "--train-data D %s", text);
    int rc = parse(&any_program, full);
    if (rc != 0)
        print_error("'%s': %s\n", text, error.text);
    return rc;
}

static void numbers_are_read_and_checked(void **state)
{
    assert_int_equal(parse_ok("--nproc-per-node 8 --max-restarts=3 --base-learning-rate 2.5e-3"), 0);
    assert_int_equal(config.nproc, 8);
    assert_int_equal(config.restarts, 3);
    assert_true(config.rate == 2.5e-3);
}

static void underscores_aliases_prefixes_and_letters_are_the_same_option(void **state)
{
    static const char *const forms[] = {"--nproc-per-node 8",
                                        "--nproc_per_node 8",
                                        "--nproc_per_node=8",
                                        "--nproc 8",
                                        "--np=8",
                                        "--nproc_per 8",
                                        "-n 8",
                                        "-n8",
                                        "-an8"};
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        assert_int_equal(parse_ok(forms[i]), 0);
        assert_int_equal(config.nproc, 8);
    }
    static const char *const ids[] = {"--run-id j",  "--run_id=j",   "--rdzv-id j",
                                      "--rdzv_id j", "--job-name j", "--job j"};
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        assert_int_equal(parse_ok(ids[i]), 0);
        assert_string_equal(config.run_id, "j");
    }
}

static void flags_have_words_and_a_no_form(void **state)
{
    static const struct {
        const char *text;
        bool amp, resume;
    } cases[] = {
        {"", false, true},
        {"--amp --no-resume", true, false},
        {"--amp=on --resume=off", true, false},
        {"--amp=yes --resume=no", true, false},
        {"--amp=1 --resume=0", true, false},
        {"--amp=TRUE --resume=False", true, false},
        {"--amp --no-amp", false, true},
        {"--no_amp -a", true, true},
        {"--no-res", false, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(parse_ok(cases[i].text), 0);
        if (config.amp != cases[i].amp || config.resume != cases[i].resume)
            fail_msg("'%s' gave amp %d resume %d", cases[i].text, config.amp, config.resume);
    }
}

static void durations_take_units(void **state)
{
    static const struct {
        const char *text;
        double seconds;
    } cases[] = {{"30", 30},   {"1.5", 1.5}, {"500ms", 0.5}, {"0", 0},
                 {"10m", 600}, {"2h", 7200}, {"1d", 86400},  {"3s", 3}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[64];
        snprintf(text, sizeof text, "--timeout %s", cases[i].text);
        assert_int_equal(parse_ok(text), 0);
        if (config.timeout != cases[i].seconds)
            fail_msg("%s gave %g", cases[i].text, config.timeout);
    }
}

static void choices_and_custom_values_are_stored(void **state)
{
    assert_int_equal(parse_ok("--mode bf16 --nnodes 2:4"), 0);
    assert_int_equal(config.mode, 1);
    assert_int_equal(config.nnodes.min, 2);
    assert_int_equal(config.nnodes.max, 4);
    assert_int_equal(parse_ok("--mode=off"), 0);
    assert_int_equal(config.mode, 2);
    assert_int_equal(config.nnodes.max, 1);
}

static void defaults_give_way_to_the_environment_and_that_to_the_command_line(void **state)
{
    assert_int_equal(parse_ok(""), 0);
    assert_int_equal(config.nproc, 1);
    assert_int_equal(result.source[1], ARG_FROM_DEFAULT);
    setenv("TEST_NPROC_OLD", "3", 1);
    assert_int_equal(parse_ok(""), 0);
    assert_int_equal(config.nproc, 3);
    setenv("TEST_NPROC", "5", 1);
    setenv("TEST_AMP", "yes", 1);
    assert_int_equal(parse_ok(""), 0);
    assert_int_equal(config.nproc, 5);
    assert_true(config.amp);
    assert_int_equal(result.source[1], ARG_FROM_ENV);
    assert_int_equal(parse_ok("-n 7 --no-amp"), 0);
    assert_int_equal(config.nproc, 7);
    assert_false(config.amp);
    assert_int_equal(result.source[1], ARG_FROM_COMMAND_LINE);
    setenv("TEST_NPROC", "", 1);
    setenv("TEST_AMP", "2", 1); /* as torchrun has it */
    assert_int_equal(parse_ok(""), 0);
    assert_true(config.amp);
    unsetenv("TEST_AMP");
    assert_int_equal(parse_ok(""), 0);
    assert_int_equal(config.nproc, 3);
    unsetenv("TEST_NPROC");
    unsetenv("TEST_NPROC_OLD");
}

static void a_bad_variable_is_named_unless_the_command_line_overrides_it(void **state)
{
    setenv("TEST_NPROC", "many", 1);
    assert_int_equal(parse(&any_program, "--train-data D"), ERR_USAGE);
    assert_string_equal(error.text, "TEST_NPROC: 'many' is not a whole number");
    assert_int_equal(parse_ok("-n 2"), 0);
    unsetenv("TEST_NPROC");
}

static void the_last_of_two_wins_but_both_are_checked(void **state)
{
    assert_int_equal(parse_ok("-n 2 --nproc_per_node 3"), 0);
    assert_int_equal(config.nproc, 3);
    assert_int_equal(parse(&any_program, "-n x -n 3"), ERR_USAGE);
}

static void mistakes_get_one_clear_sentence(void **state)
{
    static const struct {
        const char *text, *expected;
    } cases[] = {
        {"--nproc_per_node 0", "--nproc-per-node: 0 is out of range, expected 1 to 4096"},
        {"-n 4097", "--nproc-per-node: 4097 is out of range, expected 1 to 4096"},
        {"-n 99999999999999999999", "--nproc-per-node: 99999999999999999999 is out of range, expected 1 to 4096"},
        {"-n 1e3", "--nproc-per-node: '1e3' is not a whole number"},
        {"--nproc=", "--nproc-per-node: '' is not a whole number"},
        {"--max-restarts -1", "--max-restarts: -1 is too small, expected at least 0"},
        {"-r nan", "--base-learning-rate: 'nan' is not a finite number"},
        {"-r 101", "--base-learning-rate: 101 is out of range, expected 0 to 100"},
        {"-r 0.1x", "--base-learning-rate: '0.1x' is not a finite number"},
        {"--timeout -1", "--timeout: '-1' is not a duration, expected seconds or a number with ms, s, m, h or d"},
        {"--timeout 5w", "--timeout: '5w' is not a duration, expected seconds or a number with ms, s, m, h or d"},
        {"--amp=maybe", "--amp: 'maybe' is neither on nor off (true, false, yes, no, 1, 0)"},
        {"--amp=2", "--amp: '2' is neither on nor off (true, false, yes, no, 1, 0)"},
        {"--amp=-1", "--amp: '-1' is neither on nor off (true, false, yes, no, 1, 0)"},
        {"--mode fp8", "--mode: 'fp8' is not one of auto|bf16|off"},
        {"--nnodes a:b", "--nnodes: 'a:b': expected MIN[:MAX]"},
        {"--no-amp=1", "option '--no-amp=1' takes no value"},
        {"--help=1", "option '--help=1' takes no value"},
        {"--max-restarts", "option '--max-restarts' needs a value"},
        {"-n", "option '-n' (--nproc-per-node) needs a value"},
        {"-x", "unknown option '-x' (long options begin with two dashes; see --help)"},
        {"--n 3", "option '--n' is ambiguous: --nproc-per-node, --nnodes, --no-amp, --no-resume"},
        {"--r=3", "option '--r' is ambiguous: --run-id, --resume"},
        {"--nproc-per-nod 2 --nprocs-per-node 2",
         "unknown option '--nprocs-per-node', did you mean '--nproc-per-node'?"},
        {"--nprocs_per_node=2", "unknown option '--nprocs_per_node', did you mean '--nproc_per_node'?"},
        {"--max-restart 2 --maxrestarts 2", "unknown option '--maxrestarts', did you mean '--max-restarts'?"},
        {"--frobnicate", "unknown option '--frobnicate' (see --help)"},
        {"--secret-knop 1", "unknown option '--secret-knop' (see --help)"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int rc = parse(&any_program, cases[i].text);
        if (rc != ERR_USAGE)
            fail_msg("'%s' gave %d", cases[i].text, rc);
        assert_string_equal(error.text, cases[i].expected);
    }
}

static void options_end_at_the_program_name(void **state)
{
    assert_int_equal(parse(&stop_program, "--train-data D -n 2 prog -n 9 --unknown"), 0);
    assert_int_equal(config.nproc, 2);
    assert_int_equal(result.first_operand, 5);
    assert_string_equal(words[result.first_operand], "prog");
    assert_string_equal(words[result.first_operand + 3], "--unknown");
    assert_int_equal(parse(&stop_program, "--train-data D -- -n 9"), 0);
    assert_int_equal(config.nproc, 1);
    assert_string_equal(words[result.first_operand], "-n");
}

/* The words from the program's on, with blanks between them. */
static void program_is(const char *text, const char *expected)
{
    char got[256] = "";
    assert_int_equal(parse(&stop_program, text), 0);
    for (int i = result.first_operand; words[i]; i++)
        snprintf(got + strlen(got), sizeof got - strlen(got), "%s%s", got[0] ? " " : "", words[i]);
    assert_string_equal(got, expected);
}

static void one_pair_of_dashes_goes_as_by_argparse(void **state)
{
    (void)state;
    program_is("--train-data D t -- -n 9", "t -n 9");
    program_is("--train-data D t -- -- b", "t -- b");
    program_is("--train-data D -- t -- b", "t -- b");
    program_is("--train-data D t a -- b", "t a -- b");
    program_is("--train-data D t --", "t");
    program_is("--train-data -- t -- b", "t b"); /* the first pair is a value */
}

static void values_are_taken_as_argparse_takes_them(void **state)
{
    (void)state;
    assert_int_equal(parse(&stop_program, "--train-data D -n=3 -r=0.5 t"), 0);
    assert_int_equal(config.nproc, 3);
    assert_true(config.rate == 0.5);
    assert_int_equal(parse(&stop_program, "--train-data D -n \t3\n --timeout \n5 t"), 0);
    assert_int_equal(config.nproc, 3);
    assert_true(config.timeout == 5);
    assert_int_equal(parse(&stop_program, "--train-data D -n \t t"), ERR_USAGE);
}

/* As crun and torchrun have --rdzv-conf, and crun alone --rdzv-ca. */
static void a_prefix_means_the_one_preferred_option(void **state)
{
    struct arg_program p = stop_program;
    (void)state;
    assert_int_equal(parse(&p, "--train-data D --r=7 t"), ERR_USAGE);
    p.preferred_env = "TEST_RUN";
    assert_int_equal(parse(&p, "--train-data D --r=7 t"), 0);
    assert_string_equal(config.run_id, "7");
    free(words[3]); /* the whole name in its place */
    assert_int_equal(parse(&p, "--train-data D --r 8 t"), 0);
    assert_string_equal(config.run_id, "8");
    free(words[3]); /* the whole name in its place */
}

static void operands_are_permuted_or_refused(void **state)
{
    assert_int_equal(parse(&any_program, "a --train-data D b -n 2"), 0);
    assert_int_equal(config.nproc, 2);
    assert_string_equal(words[result.first_operand], "a");
    assert_string_equal(words[result.first_operand + 1], "b");
    assert_int_equal(parse(&none_program, "a --train-data D"), ERR_USAGE);
    assert_string_equal(error.text, "unexpected argument 'a': none takes options only");
}

static void required_options_are_missed_but_not_by_help(void **state)
{
    assert_int_equal(parse(&any_program, "-n 2"), ERR_USAGE);
    assert_string_equal(error.text, "option '--train-data' is required: folder of images");
    assert_int_equal(parse(&any_program, "--print_config"), 0);
    assert_true(result.print_config);
    static const char *const helps[] = {"--help", "-h", "--hel", "-n 2 -h --nonsense"};
    for (size_t i = 0; i < sizeof helps / sizeof *helps; i++) {
        assert_int_equal(parse(&any_program, helps[i]), 0);
        assert_true(result.help);
    }
    assert_int_equal(parse(&any_program, "--version"), 0);
    assert_true(result.version);
}

static char *printed;
static size_t printed_len;

static FILE *begin_print(void)
{
    free(printed);
    return open_memstream(&printed, &printed_len);
}

static void expect_printed(FILE *f, const char *part, bool there)
{
    fflush(f);
    if (!strstr(printed, part) == there)
        fail_msg("'%s' is %s in:\n%s", part, there ? "not" : "wrongly", printed);
}

static void print_config_shows_value_and_source(void **state)
{
    setenv("TEST_TIMEOUT", "2m", 1);
    assert_int_equal(parse_ok("-n 3 --nnodes 2:3 --mode off --amp -r 0.3"), 0);
    FILE *f = begin_print();
    args_print_config(&any_program, &config, &result, f);
    expect_printed(f, "nproc-per-node = 3  # command line\n", true);
    expect_printed(f, "nnodes = 2:3  # command line\n", true);
    expect_printed(f, "max-restarts = 0  # default\n", true);
    expect_printed(f, "timeout = 120  # environment TEST_TIMEOUT\n", true);
    expect_printed(f, "base-learning-rate = 0.3  # command line\n", true);
    expect_printed(f, "amp = on  # command line\n", true);
    expect_printed(f, "mode = off  # command line\n", true);
    expect_printed(f, "run-id =   # default\n", true);
    expect_printed(f, "secret-knob", false);
    fclose(f);
    setenv("TEST_TIMEOUT", "365d", 1);
    assert_int_equal(parse_ok(""), 0);
    f = begin_print();
    args_print_config(&any_program, &config, &result, f);
    expect_printed(f, "timeout = 31536000  # environment TEST_TIMEOUT\n", true);
    fclose(f);
    unsetenv("TEST_TIMEOUT");
}

static void help_names_every_visible_option_within_the_width(void **state)
{
    FILE *f = begin_print();
    args_help(&stop_program, f);
    expect_printed(f, "Usage: launch [options] PROGRAM [args...]\n", true);
    expect_printed(f, "\nLaunch:\n  -n, --nproc-per-node N ", true);
    expect_printed(f, "--nnodes MIN[:MAX]", true);
    expect_printed(f, "-a, --[no-]amp", true);
    expect_printed(f, "--mode auto|bf16|off", true);
    expect_printed(f, "also --rdzv-id", true);
    expect_printed(f, "$TEST_NPROC_OLD", true);
    expect_printed(f, "secret-knob", false);
    fclose(f);
    for (const char *p = printed, *end; (end = strchr(p, '\n')); p = end + 1)
        if (end - p > 100)
            fail_msg("line of %d columns: %.*s", (int)(end - p), (int)(end - p), p);
}

static void markdown_has_a_row_for_every_visible_option(void **state)
{
    FILE *f = begin_print();
    args_markdown(&any_program, f);
    expect_printed(f, "### Launch\n\n| option | environment | default | meaning |\n|---|---|---|---|\n", true);
    expect_printed(
        f, "| `-n, --nproc-per-node N` | `TEST_NPROC`, `TEST_NPROC_OLD` | 1 | workers to start (1 to 4096) |\n", true);
    expect_printed(f, "| `--mode auto\\|bf16\\|off` |", true);
    expect_printed(f, "| `--run-id TEXT`, `--rdzv-id`, `--job-name` |", true);
    expect_printed(f, "secret-knob", false);
    fclose(f);
    free(printed);
    printed = NULL;
}

/* Two settings files, the first of them in $HOME. */
static const char *const files[] = {"~/args-test.conf", NULL, NULL};
static char second_file[] = "/tmp/args-test-XXXXXX";
static const struct arg_program file_program = {
    .name = "filed", .specs = specs, .operands = ARG_OPERANDS, .files = files};

static void write_file(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static int parse_with_files(const char *first, const char *second, const char *text)
{
    char home[] = "/tmp/args-home-XXXXXX", path[64];
    const char *two[] = {files[0], second_file, NULL};
    struct arg_program p = file_program;
    p.files = two;
    assert_non_null(mkdtemp(home));
    snprintf(path, sizeof path, "%s/args-test.conf", home);
    setenv("HOME", home, 1);
    write_file(path, first);
    write_file(second_file, second);
    int rc = parse(&p, text);
    unlink(path);
    rmdir(home);
    return rc;
}

static void settings_files_count_less_than_the_environment(void **state)
{
    const int fd = mkstemp(second_file);
    assert_true(fd >= 0);
    close(fd);
    setenv("TEST_RUN_ID", "from-env", 1);
    assert_int_equal(parse_with_files("# comment\n\ntrain_data = a#b c # folder\nnnodes = 3\n nnodes=2:4\nrun_id = x\n"
                                      "amp = yes\n",
                                      "train-data = other\nnproc_per_node = 5\nbase-learning-rate = 7\n",
                                      "--nproc-per-node 6"),
                     0);
    unsetenv("TEST_RUN_ID");
    assert_string_equal(config.data, "a#b c");
    assert_int_equal(config.nnodes.max, 4); /* as on a command line, the last one counts */
    assert_string_equal(config.run_id, "from-env");
    assert_true(config.amp);
    assert_int_equal(config.nproc, 6);
    assert_true(config.rate == 7);
    FILE *f = begin_print();
    args_print_config(&file_program, &config, &result, f);
    expect_printed(f, "nnodes = 2:4  # file /tmp/args-home-", true);
    expect_printed(f, "base-learning-rate = 7  # file /tmp/args-test-", true);
    fclose(f);
    unlink(second_file);
}

static void mistakes_in_settings_files_are_named_with_their_line(void **state)
{
    static const struct {
        const char *file, *expected;
    } cases[] = {
        {"\nnprok = 1\n", "args-test.conf: line 2: no setting 'nprok': expected the name of an option (see --help)"},
        {"nproc_pre_node = 1\n", "line 1: no setting 'nproc_pre_node', did you mean 'nproc-per-node'?"},
        {"amp\n", "line 1: expected name = value"},
        {"amp =\n", "line 1: amp: expected a value"},
        {"\n\nnproc-per-node = many\n", "args-test.conf: line 3: nproc-per-node: 'many' is not a whole number"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(parse_with_files(cases[i].file, "", "--train-data D"), ERR_USAGE);
        if (!strstr(error.text, cases[i].expected))
            fail_msg("'%s'", error.text);
    }
    static char much[ARG_FILE_TEXT_MAX + 64];
    snprintf(much, sizeof much, "run-id = %*s\n", ARG_FILE_TEXT_MAX, "x");
    assert_int_equal(parse_with_files(much, "", "--train-data D"), 0); /* blanks are no value */
    memset(much + strlen("run-id = "), 'x', ARG_FILE_TEXT_MAX);
    assert_int_equal(parse_with_files(much, "", "--train-data D"), ERR_USAGE);
    assert_non_null(strstr(error.text, "line 1: expected less than 8192 bytes of settings"));
    static char huge[(1 << 20) + 2]; /* one comment: a line is read whole */
    memset(huge, '#', sizeof huge - 1);
    assert_int_equal(parse_with_files(huge, "", "--train-data D"), ERR_USAGE);
    assert_non_null(
        strstr(error.text, "args-test.conf has 1048577 bytes: expected a file of settings, of at most 1048576"));
    unlink(second_file);
}

static void flags_that_begin_with_no_have_no_second_no(void **state)
{
    static const struct arg_spec only[] = {{.name = "no-python", .type = ARG_FLAG, AT(amp), .help = "h"}, ARG_END};
    static const struct arg_program p = {.name = "p", .specs = only};
    assert_int_equal(parse(&p, "--no_python"), 0);
    assert_true(config.amp);
    assert_int_equal(parse(&p, "--no-python=off"), 0);
    assert_false(config.amp);
    assert_int_equal(parse(&p, "--no-no-python"), ERR_USAGE);
    FILE *f = begin_print();
    args_help(&p, f);
    expect_printed(f, "  --no-python ", true);
    fclose(f);
}

static void other_pages_are_asked_for_by_hidden_options(void **state)
{
    static const struct {
        const char *line;
        enum arg_page page;
    } cases[] = {{"--options-markdown", ARG_PAGE_MARKDOWN},
                 {"--options-man", ARG_PAGE_MAN},
                 {"--completion bash", ARG_PAGE_BASH},
                 {"--print-completion=zsh", ARG_PAGE_ZSH}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(parse(&any_program, cases[i].line), 0);
        assert_true(result.help);
        assert_int_equal(result.page, cases[i].page);
    }
    assert_int_equal(parse(&any_program, "--completion fish"), ERR_USAGE);
    assert_string_equal(error.text, "--completion: 'fish' is not one of bash|zsh");
}

static void the_manual_page_escapes_what_roff_would_take_for_its_own(void **state)
{
    static const struct arg_spec odd[] = {
        {.name = "odd-one", .short_name = 'o', .type = ARG_STRING, .help = ".it's a~b\\c ^d `e", .def = "x"}, ARG_END};
    static const struct arg_row rows[] = {{"0", "well"}, {NULL, NULL}};
    static const struct arg_section status = {.title = "EXIT STATUS", .intro = "One of:", .rows = rows};
    static const struct arg_section *const sections[] = {&status, NULL};
    static const struct arg_program p = {
        .name = "odd one", .summary = "Does it. Then ends.", .specs = odd, .files = files, .sections = sections};
    FILE *f = begin_print();
    args_man(&p, "odd 1", f);
    expect_printed(f, ".TH ODD-ONE 1 \"\" \"odd 1\" \"\"\n", true);
    expect_printed(f, ".SH NAME\nodd\\-one \\- Does it\n", true);
    expect_printed(f, ".SH DESCRIPTION\nDoes it. Then ends.\n", true);
    expect_printed(f, ".SH EXIT STATUS\nOne of:\n.TP\n\\fB0\\fR\nwell\n", true);
    expect_printed(f, "\\fB\\-o\\fR, \\fB\\-\\-odd\\-one\\fR \\fITEXT\\fR\n", true);
    expect_printed(f, "\n\\&.it\\(aqs a\\(tib\\ec \\(had \\(gae\n(default x)\n", true);
    expect_printed(f, ".SH FILES\n.TP\n\\fI\\(ti/args\\-test.conf\\fR\n", true);
    fclose(f);
    free(printed);
    printed = NULL;
}

static void number_parsers_take_whole_texts_only(void **state)
{
    int64_t i = 7;
    double d = 7;
    assert_int_equal(parse_i64("-9223372036854775808", "x", INT64_MIN, INT64_MAX, &i, NULL), 0);
    assert_true(i == INT64_MIN);
    static const char *const bad[] = {"", " 1", "1 ", "0x10", "1.0", "9223372036854775808"};
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
        assert_int_equal(parse_i64(bad[k], "x", INT64_MIN, INT64_MAX, &i, &error), ERR_USAGE);
        assert_true(i == INT64_MIN);
    }
    assert_int_equal(parse_f64("1e999", "x", -HUGE_VAL, HUGE_VAL, &d, &error), ERR_USAGE);
    static const char *const no_seconds[] = {"",     " 1",   "ms",  ".",   "-1",    "+1", "1e3",
                                             "1e3s", "0x10", "inf", "nan", "1.5.2", "1,5"};
    for (size_t k = 0; k < sizeof no_seconds / sizeof *no_seconds; k++)
        assert_int_equal(parse_seconds(no_seconds[k], "x", &d, &error), ERR_USAGE);
    assert_true(d == 7);
    assert_int_equal(parse_seconds(".5m", "x", &d, &error), 0);
    assert_true(d == 30);
    /* 8388608T is 2^63; of 16777217T the lowest 64 bits are 1T */
    static const char *const no_bytes[] = {"", "M", "0", "-1", "1e3", "1.5G", "0x10", "8388608T", "16777217T"};
    i = 7;
    for (size_t k = 0; k < sizeof no_bytes / sizeof *no_bytes; k++)
        assert_int_equal(parse_bytes(no_bytes[k], 1, &i, &error), ERR_USAGE);
    assert_true(i == 7);
    assert_int_equal(parse_bytes("64M", 1, &i, &error), 0);
    assert_true(i == 64 << 20);
    assert_int_equal(parse_bytes("8388607T", 1, &i, &error), 0);
    assert_true(i == INT64_C(8388607) << 40);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_are_read_and_checked),
        cmocka_unit_test(underscores_aliases_prefixes_and_letters_are_the_same_option),
        cmocka_unit_test(flags_have_words_and_a_no_form),
        cmocka_unit_test(durations_take_units),
        cmocka_unit_test(choices_and_custom_values_are_stored),
        cmocka_unit_test(defaults_give_way_to_the_environment_and_that_to_the_command_line),
        cmocka_unit_test(a_bad_variable_is_named_unless_the_command_line_overrides_it),
        cmocka_unit_test(the_last_of_two_wins_but_both_are_checked),
        cmocka_unit_test(mistakes_get_one_clear_sentence),
        cmocka_unit_test(options_end_at_the_program_name),
        cmocka_unit_test(one_pair_of_dashes_goes_as_by_argparse),
        cmocka_unit_test(values_are_taken_as_argparse_takes_them),
        cmocka_unit_test(a_prefix_means_the_one_preferred_option),
        cmocka_unit_test(operands_are_permuted_or_refused),
        cmocka_unit_test(required_options_are_missed_but_not_by_help),
        cmocka_unit_test(print_config_shows_value_and_source),
        cmocka_unit_test(help_names_every_visible_option_within_the_width),
        cmocka_unit_test(markdown_has_a_row_for_every_visible_option),
        cmocka_unit_test(settings_files_count_less_than_the_environment),
        cmocka_unit_test(mistakes_in_settings_files_are_named_with_their_line),
        cmocka_unit_test(flags_that_begin_with_no_have_no_second_no),
        cmocka_unit_test(other_pages_are_asked_for_by_hidden_options),
        cmocka_unit_test(the_manual_page_escapes_what_roff_would_take_for_its_own),
        cmocka_unit_test(number_parsers_take_whole_texts_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
