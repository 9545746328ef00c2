/* The options on output: what they say of each rank, and the template of a prefix. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/base/err.h"
#include "launcher/output/log_conf.h"
#include "launcher/output/log_prefix.h"

static void a_stream_specification_is_read_as_torchrun_reads_it_and_beyond(void **state)
{
    static const struct {
        const char *text;
        int local, rank, streams; /* streams < 0: refused */
    } cases[] = {{"0", 3, 3, 0},       {"1", 3, 3, 1},          {"3", 12, 99, 3},      {"0:1,1:2", 0, 0, 1},
                 {"0:1,1:2", 1, 1, 2}, {"0:1,1:2", 2, 2, 0},    {"12:3", 12, 12, 3},   {"12:3", 1, 1, 0},
                 {"0-7:3", 7, 15, 3},  {"0-7:3", 8, 0, 0},      {"*:3,2:0", 2, 2, 0},  {"*:3,2:0", 3, 2, 3},
                 {"g8-15:2", 0, 8, 2}, {"g8-15:2", 8, 0, 0},    {"", 0, 0, 0},         {"4", 0, 0, -1},
                 {"0:4", 0, 0, -1},    {"0:", 0, 0, -1},        {":1", 0, 0, -1},      {"0:1,", 0, 0, -1},
                 {"3-1:2", 0, 0, -1},  {"-1:2", 0, 0, -1},      {"0:1 1:2", 0, 0, -1}, {"33", 0, 0, -1},
                 {"g:1", 0, 0, -1},    {"99999999:1", 0, 0, -1}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct log_spec s;
        struct err e;
        const int rc = log_conf_parse_spec(cases[i].text, &s, &e);
        const int got = rc < 0 ? -1 : log_spec_of(&s, cases[i].local, cases[i].rank);
        if (got != cases[i].streams)
            fail_msg("'%s' of %d, %d: %d", cases[i].text, cases[i].local, cases[i].rank, got);
    }
}

static void a_rank_list_holds_numbers_and_ranges(void **state)
{
    struct log_ranks r;
    struct err e;
    (void)state;
    assert_int_equal(log_conf_parse_ranks("0, 2 ,5-12 ", &r, &e), 0);
    const int in[] = {0, 2, 5, 9, 12}, out[] = {1, 3, 4, 13};
    for (size_t i = 0; i < sizeof in / sizeof *in; i++)
        assert_true(log_ranks_has(&r, in[i]));
    for (size_t i = 0; i < sizeof out / sizeof *out; i++)
        assert_false(log_ranks_has(&r, out[i]));
    assert_int_equal(log_conf_parse_ranks("", &r, &e), 0);
    assert_true(log_ranks_has(&r, 77));
    static const char *const bad[] = {",", "0,", "a", "1-", "2-1", "0,,1", "-3", "1.5", "0 1", "0, ", "1 -2"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (log_conf_parse_ranks(bad[i], &r, &e) != ERR_USAGE)
            fail_msg("'%s' was taken", bad[i]);
}

static void sizes_have_units(void **state)
{
    static const struct {
        const char *text;
        int64_t bytes;
    } cases[] = {{"0", 0},
                 {"17", 17},
                 {"500K", 500 << 10},
                 {"100M", 100 << 20},
                 {"2G", (int64_t)2 << 30},
                 {"", -1},
                 {"M", -1},
                 {"1m", -1},
                 {"-1", -1},
                 {"1.5G", -1},
                 {"99999T", (int64_t)99999 * 1024 * 1024 * 1024 * 1024},
                 {"9999999T", -1}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int64_t n = -1;
        struct err e;
        log_conf_parse_bytes(cases[i].text, &n, &e);
        if (n != cases[i].bytes)
            fail_msg("'%s': %lld", cases[i].text, (long long)n);
    }
}

/* The console and file routes of local rank 1, rank 9. */
static struct log_routes routes(const char *dir, const char *redirects, const char *tee, struct log_conf *c)
{
    struct err e;
    c->dir = dir;
    c->template = LOG_PREFIX_DEFAULT;
    assert_int_equal(log_conf_parse_spec(redirects, &c->redirects, &e), 0);
    assert_int_equal(log_conf_parse_spec(tee, &c->tee, &e), 0);
    assert_int_equal(log_conf_settle(c, &e), 0);
    return log_conf_routes(c, 1, 9);
}

static void every_stream_has_its_routes(void **state)
{
    static const struct {
        const char *dir, *redirects, *tee;
        int console, file;
    } cases[] = {{NULL, "0", "0", 3, 0},        {"d", "0", "0", 3, 3}, {"d", "3", "0", 0, 3},
                 {"d", "1", "0", 2, 1},         {"d", "0", "2", 3, 2}, {"d", "3", "3", 3, 3},
                 {"d", "3", "1", 1, 3},         {"d", "1", "2", 2, 3}, {NULL, "3", "0", 0, 3},
                 {"/dev/null", "3", "0", 0, 0}, {"", "0", "0", 3, 0},  {"d", "0:3", "0", 3, 0},
                 {"/dev/null", "0", "3", 3, 0}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct log_conf c = {0};
        struct log_routes r = routes(cases[i].dir, cases[i].redirects, cases[i].tee, &c);
        if (r.console != cases[i].console || r.file != cases[i].file)
            fail_msg("%s -r %s -t %s: %d %d", cases[i].dir, cases[i].redirects, cases[i].tee, r.console, r.file);
    }
}

static void filters_and_views_take_from_the_console_only(void **state)
{
    struct log_conf c = {0};
    struct err e;
    (void)state;
    assert_int_equal(log_conf_parse_ranks("0,2", &c.local_ranks, &e), 0);
    struct log_routes r = routes("d", "0", "0", &c);
    assert_true(r.console == 0 && r.file == 3);
    c = (struct log_conf){0};
    assert_int_equal(log_conf_parse_ranks("9", &c.ranks, &e), 0);
    r = routes("d", "0", "0", &c);
    assert_true(r.console == 3 && r.file == 3);
    c = (struct log_conf){.show = LOG_SHOW_FIRST_FAILURE};
    r = routes(NULL, "0", "0", &c);
    assert_true(r.console == 0 && r.file == 3);
    assert_string_equal(c.dir, LOG_CONF_DEFAULT_DIR);
}

/* Whether an option has an effect is said by config_unused.c, which asks whether there are files. */
static void no_folder_means_no_files_and_a_contradiction_is_refused(void **state)
{
    struct err e;
    struct log_conf nowhere = {.template = "", .dir = "/dev/null", .out_filters = "a", .max_bytes = 1},
                    wrong = {.template = "",
                             .dir = "d",
                             .show = LOG_SHOW_FIRST_FAILURE,
                             .tee = {1, {{{0, 9}, false, 3}}}},
                    none = {.template = "", .layout = LOG_LAYOUT_TORCHRUN, .rotate_keep = 1};
    (void)state;
    assert_int_equal(log_conf_settle(&nowhere, &e), 0);
    assert_null(nowhere.dir);
    assert_int_equal(log_conf_settle(&none, &e), 0);
    assert_null(none.dir);
    assert_int_equal(log_conf_settle(&wrong, &e), ERR_USAGE);
}

static void a_doubled_comma_is_one(void **state)
{
    struct log_words w;
    (void)state;
    assert_int_equal(log_words_split("loss,a,,b,,,c,", &w), 0);
    assert_string_equal(w.v[0], "loss");
    assert_string_equal(w.v[1], "a,b,");
    assert_string_equal(w.v[2], "c");
    assert_null(w.v[3]);
    assert_true(log_words_match(&w, "the loss is", 11));
    assert_false(log_words_match(&w, "the los", 7));
    log_words_free(&w);
    assert_int_equal(log_words_split(NULL, &w), 0);
    assert_false(log_words_match(&w, "x", 1));
    log_words_free(&w);
}

static void a_prefix_is_filled_in(void **state)
{
    const struct log_prefix_values v = {"trainer", "node1", "stderr", "job", "T", 3, 11, 12, 1, 7};
    static const struct {
        const char *text, *expected;
    } cases[] = {{"[${role_name}${local_rank}]: ", "[trainer3]: "},
                 {"$rank/$rank_in_role ${hostname}|$host ", "11/12 node1|node1 "},
                 {"$$ ${time} ${stream} ${round} ${run_id} ${group_rank}", "$ T stderr 7 job 1"},
                 {"", ""},
                 {"plain", "plain"}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct buf out = {0};
        struct err e;
        assert_int_equal(log_prefix_check(cases[i].text, &e), 0);
        assert_int_equal(log_prefix_render(cases[i].text, &v, &out), 0);
        assert_string_equal(out.len ? out.data : "", cases[i].expected);
        buf_free(&out);
    }
    assert_true(log_prefix_uses_time("$rank ${time}"));
    assert_false(log_prefix_uses_time("$$time $rank"));
}

static void an_unknown_macro_is_named(void **state)
{
    static const char *const bad[] = {"${foo}", "$foo", "${rank", "cost: $ 5", "${}", "$"};
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct err e;
        if (log_prefix_check(bad[i], &e) != ERR_USAGE || !strstr(e.text, "is no macro"))
            fail_msg("'%s' was taken", bad[i]);
    }
}

static void a_prefix_by_default_asks_for_no_lines(void **state)
{
    (void)state;
    assert_false(log_conf_asks_for_lines(&(struct log_conf){0}));
    assert_false(log_conf_asks_for_lines(&(struct log_conf){.prefix = true, .prefix_by_default = true}));
    assert_false(log_conf_asks_for_lines(&(struct log_conf){.prefix_by_default = true}));
    assert_true(log_conf_asks_for_lines(&(struct log_conf){.prefix = true}));
    assert_true(log_conf_asks_for_lines(&(struct log_conf){.rate = 1}));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stream_specification_is_read_as_torchrun_reads_it_and_beyond),
        cmocka_unit_test(a_rank_list_holds_numbers_and_ranges),
        cmocka_unit_test(sizes_have_units),
        cmocka_unit_test(every_stream_has_its_routes),
        cmocka_unit_test(filters_and_views_take_from_the_console_only),
        cmocka_unit_test(no_folder_means_no_files_and_a_contradiction_is_refused),
        cmocka_unit_test(a_doubled_comma_is_one),
        cmocka_unit_test(a_prefix_is_filled_in),
        cmocka_unit_test(an_unknown_macro_is_named),
        cmocka_unit_test(a_prefix_by_default_asks_for_no_lines),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
