#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include "worker/report/progress.h"

static const struct progress_state sample = {.epoch = 1,
                                             .epochs = 5,
                                             .step = 31,
                                             .steps_per_epoch = 63,
                                             .total_done = 94,
                                             .total_steps = 315,
                                             .loss = 1.23456,
                                             .acc1 = 54.321,
                                             .images_per_sec = 81.25,
                                             .data_wait = 0.021,
                                             .eta_seconds = 174.4};

static void durations_are_short_and_rounded(void **state)
{
    (void)state;
    static const struct {
        double seconds;
        const char *text;
    } cases[] = {{0, "0s"},          {0.4, "0s"},       {45, "45s"},     {59.6, "1m00s"},  {200, "3m20s"},
                 {3599.4, "59m59s"}, {3599.6, "1h00m"}, {3720, "1h02m"}, {86400, "1d00h"}, {183600, "2d03h"},
                 {-1, "?"},          {NAN, "?"},        {INFINITY, "?"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char out[16];
        assert_string_equal(progress_duration(cases[i].seconds, out, sizeof out), cases[i].text);
    }
}

static void a_wide_line_has_every_part(void **state)
{
    (void)state;
    char out[256];
    assert_string_equal(progress_format(&sample, 200, out, sizeof out),
                        "Epoch 2/5 [31/63]  loss 1.2346  Acc@1  54.32  81.2 img/s  ETA 2m54s  data wait 2%");
}

static void a_line_never_exceeds_its_width_and_loses_parts_from_the_right(void **state)
{
    (void)state;
    char out[256], before[256] = "Epoch 2/5 [31/63]";
    for (int width = 20; width < 120; width++) {
        progress_format(&sample, width, out, sizeof out);
        if ((int)strlen(out) > width || strncmp(out, before, strlen(before)) != 0)
            fail_msg("width %d: '%s' after '%s'", width, out, before);
        strcpy(before, out);
    }
    progress_format(&sample, 1, out, sizeof out);
    assert_string_equal(out, "Epoch 2/5 [31/63]");
}

/* Runs body with stderr going to fd, restores it. */
static void with_stderr(int fd, void (*body)(void))
{
    fflush(stderr);
    int saved = dup(2);
    assert_int_equal(dup2(fd, 2), 2);
    body();
    assert_int_equal(dup2(saved, 2), 2);
    close(saved);
}

static void run_an_epoch(void)
{
    struct progress p;
    struct progress_state s = sample;
    s.epoch = 0;
    progress_init(&p, 20);
    for (int64_t i = 1; i <= 63; i++) {
        s.step = s.total_done = i;
        progress_step(&p, &s);
    }
    progress_end_line(&p);
    progress_end_line(&p); /* a second time: nothing */
}

static void elsewhere_plain_lines_come_every_so_many_steps_and_at_the_end(void **state)
{
    (void)state;
    int fds[2];
    char have[4096];
    assert_int_equal(pipe(fds), 0);
    with_stderr(fds[1], run_an_epoch);
    close(fds[1]);
    ssize_t n = read(fds[0], have, sizeof have - 1);
    close(fds[0]);
    assert_true(n > 0);
    have[n] = 0;
    const char *starts[] = {"Epoch 1/5 [20/63]", "Epoch 1/5 [40/63]", "Epoch 1/5 [60/63]", "Epoch 1/5 [63/63]"};
    char *line = strtok(have, "\n");
    for (int i = 0; i < 4; i++, line = strtok(NULL, "\n")) {
        assert_non_null(line);
        if (strncmp(line, starts[i], strlen(starts[i])) != 0 || strchr(line, '\r') || strchr(line, '\033'))
            fail_msg("line %d: '%s' instead of '%s...'", i, line, starts[i]);
    }
    assert_null(line);
}

static void on_a_terminal_one_line_is_redrawn_and_ended_once(void **state)
{
    (void)state;
    int master = posix_openpt(O_RDWR | O_NOCTTY);
    if (master < 0 || grantpt(master) < 0 || unlockpt(master) < 0) {
        print_message("# SKIP no pseudo-terminals here\n");
        skip();
    }
    int slave = open(ptsname(master), O_RDWR | O_NOCTTY);
    assert_true(slave >= 0);
    struct termios t;
    tcgetattr(slave, &t);
    cfmakeraw(&t);
    tcsetattr(slave, TCSANOW, &t);
    struct winsize w = {.ws_row = 24, .ws_col = 40};
    assert_int_equal(ioctl(master, TIOCSWINSZ, &w), 0);
    with_stderr(slave, run_an_epoch);
    char have[8192];
    size_t n = 0;
    while (n == 0 || have[n - 1] != '\n') { /* the line discipline hands over what it has so far */
        ssize_t r = read(master, have + n, sizeof have - 1 - n);
        assert_true(r > 0);
        n += (size_t)r;
    }
    have[n] = 0;
    close(slave);
    close(master);
    int drawn = 0;
    for (char *at = have; (at = strchr(at, '\r')); at++) {
        size_t width = strcspn(at + 1, "\033");
        assert_in_range(width, 1, 39);
        assert_memory_equal(at + 1 + width, "\033[K", 3);
        drawn++;
    }
    assert_in_range(drawn, 2, 20); /* the first and the last step at least, far from all 63 */
    assert_non_null(strstr(have, "[63/63]"));
    assert_ptr_equal(strchr(have, '\n'), have + n - 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(durations_are_short_and_rounded),
        cmocka_unit_test(a_wide_line_has_every_part),
        cmocka_unit_test(a_line_never_exceeds_its_width_and_loses_parts_from_the_right),
        cmocka_unit_test(elsewhere_plain_lines_come_every_so_many_steps_and_at_the_end),
        cmocka_unit_test(on_a_terminal_one_line_is_redrawn_and_ended_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
