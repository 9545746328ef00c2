/* Words that a shell reads back as they are. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "launcher/base/shell_word.h"

static const char *const words[][2] = {
    {"/usr/bin/crun", "/usr/bin/crun"},
    {"--opt_1=a:b,c+d@e%f.g", "--opt_1=a:b,c+d@e%f.g"},
    {"a b'c", "'a b'\\''c'"},
    {"", "''"},
    {"'", "''\\'''"},
    {"$HOME", "'$HOME'"},
    {"`id`", "'`id`'"},
    {"a;b", "'a;b'"},
    {"~", "'~'"},
    {"*?[]{}", "'*?[]{}'"},
    {"a\nb", "'a\nb'"},
    {"\\", "'\\'"},
    {"#", "'#'"},
    {"\xc3\xa9", "'\xc3\xa9'"},
};
#define WORDS (sizeof words / sizeof *words)

static void a_word_is_quoted_for_a_shell(void **state)
{
    (void)state;
    for (size_t i = 0; i < WORDS; i++) {
        char quoted[64], *printed = NULL;
        size_t n = 0;
        FILE *f = open_memstream(&printed, &n);
        shell_print(words[i][0], f);
        fclose(f);
        assert_string_equal(shell_quote(words[i][0], quoted, sizeof quoted), words[i][1]);
        assert_string_equal(printed, words[i][1]);
        free(printed);
    }
}

static void a_shell_reads_it_back(void **state)
{
    (void)state;
    for (size_t i = 0; i < WORDS; i++) {
        char quoted[64], command[128], back[64] = "";
        snprintf(command, sizeof command, "printf '%%s.' %s", shell_quote(words[i][0], quoted, sizeof quoted));
        FILE *f = popen(command, "r");
        assert_non_null(f);
        back[fread(back, 1, sizeof back - 1, f)] = 0;
        assert_int_equal(pclose(f), 0);
        assert_int_equal(back[strlen(words[i][0])], '.');
        assert_memory_equal(back, words[i][0], strlen(words[i][0]));
    }
}

static void what_does_not_fit_is_cut_off(void **state)
{
    char out[12];
    (void)state;
    assert_int_equal(strlen(shell_quote("a word that is too long", out, sizeof out)), 7);
    assert_int_equal(out[6], '\'');
    assert_true(strlen(shell_quote("''''''", out, sizeof out)) < sizeof out);
    assert_string_equal(shell_quote("plain-but-too-long", out, sizeof out), "plain-but-t");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_word_is_quoted_for_a_shell),
        cmocka_unit_test(a_shell_reads_it_back),
        cmocka_unit_test(what_does_not_fit_is_cut_off),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
