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
                                             .loss = {2.5, 1.23456},
                                             .acc1 = {50, 54.321},
                                             .acc5 = {93.75, 90.0625},
                                             .time = {0.5, 0.25},
                                             .data = {0.0102, 0.0125},
                                             .rate = {64, 81.25},
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

static void timedeltas_are_pythons(void **state)
{
    (void)state;
    static const struct {
        int64_t us;
        const char *text;
    } cases[] = {{0, "0:00:00"},
                 {1, "0:00:00.000001"},
                 {62345678, "0:01:02.345678"},
                 {36000000000, "10:00:00"},
                 {93784000000, "1 day, 2:03:04"},
                 {200000500000, "2 days, 7:33:20.500000"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char out[48];
        assert_string_equal(progress_timedelta(cases[i].us, out, sizeof out), cases[i].text);
    }
}

static void a_wide_line_has_every_part(void **state)
{
    (void)state;
    char out[256];
    struct progress_state s = sample;
    assert_string_equal(progress_text(PROGRESS_PLAIN, &s, 200, out, sizeof out),
                        "Epoch 2/5 [31/63]  loss 1.2346  Acc@1  54.32  81.2 img/s  ETA 2m54s  data wait 2%");
    s.synthetic = true;
    assert_non_null(strstr(progress_text(PROGRESS_PLAIN, &s, 200, out, sizeof out), "81.2 img/s (synthetic)  ETA"));
    s.tokens = true;
    s.loss.mean = 2;
    assert_non_null(strstr(progress_text(PROGRESS_PLAIN, &s, 200, out, sizeof out),
                           "loss 2.0000  perplexity 7.39  Acc@1  54.32  81.2 tok/s (synthetic)  ETA"));
}

static void a_line_never_exceeds_its_width_and_loses_parts_from_the_right(void **state)
{
    (void)state;
    char out[256], before[256] = "Epoch 2/5 [31/63]";
    for (int width = 20; width < 120; width++) {
        progress_text(PROGRESS_PLAIN, &sample, width, out, sizeof out);
        if ((int)strlen(out) > width || strncmp(out, before, strlen(before)) != 0)
            fail_msg("width %d: '%s' after '%s'", width, out, before);
        strcpy(before, out);
    }
    progress_text(PROGRESS_PLAIN, &sample, 1, out, sizeof out);
    assert_string_equal(out, "Epoch 2/5 [31/63]");
}

static void lines_of_other_programs_are_theirs_byte_for_byte(void **state)
{
    (void)state;
    static const struct {
        enum progress_format format;
        const char *text;
    } cases[] = {
        {PROGRESS_TORCH, "Epoch: [1][31/63]\tTime  0.500 ( 0.250)\tData  0.010 ( 0.013)\tLoss 2.5000e+00 (1.2346e+00)\t"
                         "Acc@1  50.00 ( 54.32)\tAcc@5  93.75 ( 90.06)"},
        {PROGRESS_APEX, "Epoch: [1][31/63]\tTime 0.500 (0.250)\tSpeed 64.000 (81.250)\tLoss 2.5000000000 (1.2346)\t"
                        "Prec@1 50.000 (54.321)\tPrec@5 93.750 (90.062)"},
        {PROGRESS_ARTICLE, "Epoch [2/5], Step [31/63], Loss: 2.5000"},
        {PROGRESS_CAFFE2, "Finished iteration 31/63 of epoch 1 (64.00 images/sec)\nTraining loss: 2.5, accuracy: 0.5"},
    };
    char out[512];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_string_equal(progress_text(cases[i].format, &sample, 80, out, sizeof out), cases[i].text);
}

static void torch_pads_the_step_to_the_width_of_their_number(void **state)
{
    (void)state;
    struct progress_state s = sample;
    char out[512];
    s.epoch = 0;
    s.step = 1;
    s.steps_per_epoch = 5005;
    assert_memory_equal(progress_text(PROGRESS_TORCH, &s, 80, out, sizeof out), "Epoch: [0][   1/5005]\t", 22);
    assert_memory_equal(progress_text(PROGRESS_APEX, &s, 80, out, sizeof out), "Epoch: [0][1/5005]\t", 19);
}

/* A log of 2017: "Training loss: 3.44776368141, accuracy: 0.319999992847", "Training loss: 0.693147480488, accuracy:
 * 1.0". */
static void caffe2s_numbers_are_single_precision_as_python_2_printed_them(void **state)
{
    (void)state;
    struct progress_state s = sample;
    char out[512];
    s.loss.now = 0.6931475;
    s.acc1.now = 32;
    assert_string_equal(strchr(progress_text(PROGRESS_CAFFE2, &s, 80, out, sizeof out), '\n') + 1,
                        "Training loss: 0.693147480488, accuracy: 0.319999992847");
    s.acc1.now = 100;
    assert_non_null(strstr(progress_text(PROGRESS_CAFFE2, &s, 80, out, sizeof out), "accuracy: 1.0"));
}

static void test_lines_of_torch_and_apex(void **state)
{
    (void)state;
    char out[512];
    assert_string_equal(progress_test_text(PROGRESS_TORCH, &sample, out, sizeof out),
                        "Test: [31/63]\tTime  0.500 ( 0.250)\tLoss 2.5000e+00 (1.2346e+00)\tAcc@1  50.00 ( 54.32)\t"
                        "Acc@5  93.75 ( 90.06)");
    assert_string_equal(progress_test_text(PROGRESS_APEX, &sample, out, sizeof out),
                        "Test: [31/63]\tTime 0.500 (0.250)\tSpeed 64.000 (81.250)\tLoss 2.5000 (1.2346)\t"
                        "Prec@1 50.000 (54.321)\tPrec@5 93.750 (90.062)");
    assert_string_equal(progress_summary_text(PROGRESS_TORCH, 76.13, 92.862, out, sizeof out),
                        " * Acc@1 76.130 Acc@5 92.862");
    assert_string_equal(progress_summary_text(PROGRESS_APEX, 76.13, 92.862, out, sizeof out),
                        " * Prec@1 76.130 Prec@5 92.862");
    assert_string_equal(progress_summary_text(PROGRESS_CAFFE2, 76.13, 92.862, out, sizeof out), "");
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

static enum progress_format format;
static int every;
static const char *prefix;

static void run_an_epoch(void)
{
    struct progress p;
    struct progress_state s = sample;
    s.epoch = 0;
    progress_init(&p, format, every, prefix);
    for (int64_t i = 1; i <= 63; i++) {
        s.step = s.total_done = i;
        s.time.now = i == 20 ? 1 : 0.5; /* apex: the mean since its last line */
        progress_step(&p, &s);
    }
    progress_end_line(&p);
    progress_end_line(&p); /* a second time: nothing */
}

static void assert_lines(enum progress_format f, int freq, const char *before, const char *const *starts, int n)
{
    int fds[2];
    char have[8192];
    format = f;
    every = freq;
    prefix = before;
    assert_int_equal(pipe(fds), 0);
    with_stderr(fds[1], run_an_epoch);
    close(fds[1]);
    ssize_t got = read(fds[0], have, sizeof have - 1);
    close(fds[0]);
    assert_true(got > 0);
    have[got] = 0;
    char *line = strtok(have, "\n");
    for (int i = 0; i < n; i++, line = strtok(NULL, "\n")) {
        assert_non_null(line);
        if (strncmp(line, starts[i], strlen(starts[i])) != 0 || strchr(line, '\r') || strchr(line, '\033'))
            fail_msg("line %d: '%s' instead of '%s...'", i, line, starts[i]);
    }
    assert_null(line);
}

static void elsewhere_plain_lines_come_every_so_many_steps_and_at_the_end(void **state)
{
    (void)state;
    const char *starts[] = {"Epoch 1/5 [20/63]", "Epoch 1/5 [40/63]", "Epoch 1/5 [60/63]", "Epoch 1/5 [63/63]"};
    assert_lines(PROGRESS_PLAIN, 20, "", starts, 4);
    const char *others[] = {"rank 3: Epoch 1/5 [40/63]", "rank 3: Epoch 1/5 [63/63]"};
    assert_lines(PROGRESS_PLAIN, 40, "rank 3: ", others, 2);
}

static void other_programs_lines_come_at_the_steps_of_theirs(void **state)
{
    (void)state;
    const char *torch[] = {"Epoch: [0][ 1/63]", "Epoch: [0][21/63]", "Epoch: [0][41/63]", "Epoch: [0][61/63]"};
    assert_lines(PROGRESS_TORCH, 20, "", torch, 4);
    const char *apex[] = {"Epoch: [0][20/63]\tTime 0.525 ", "Epoch: [0][40/63]\tTime 0.500 ",
                          "Epoch: [0][60/63]\tTime 0.500 "};
    assert_lines(PROGRESS_APEX, 20, "", apex, 3);
    const char *article[] = {"Epoch [1/5], Step [50/63]"};
    assert_lines(PROGRESS_ARTICLE, 50, "", article, 1);
    const char *caffe2[] = {"Finished iteration 50/63 of epoch 0", "Training loss: 2.5, accuracy: 0.5"};
    assert_lines(PROGRESS_CAFFE2, 50, "", caffe2, 2);
}

static void without_a_frequency_it_is_that_of_the_program(void **state)
{
    (void)state;
    static const int usual[] = {10, 10, 10, 100, 1};
    for (int f = PROGRESS_PLAIN; f <= PROGRESS_CAFFE2; f++) {
        struct progress p;
        progress_init(&p, (enum progress_format)f, 0, "");
        assert_int_equal(p.every, usual[f]);
    }
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
    format = PROGRESS_PLAIN;
    every = 20;
    prefix = "";
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
        cmocka_unit_test(timedeltas_are_pythons),
        cmocka_unit_test(a_wide_line_has_every_part),
        cmocka_unit_test(a_line_never_exceeds_its_width_and_loses_parts_from_the_right),
        cmocka_unit_test(lines_of_other_programs_are_theirs_byte_for_byte),
        cmocka_unit_test(torch_pads_the_step_to_the_width_of_their_number),
        cmocka_unit_test(caffe2s_numbers_are_single_precision_as_python_2_printed_them),
        cmocka_unit_test(test_lines_of_torch_and_apex),
        cmocka_unit_test(elsewhere_plain_lines_come_every_so_many_steps_and_at_the_end),
        cmocka_unit_test(other_programs_lines_come_at_the_steps_of_theirs),
        cmocka_unit_test(without_a_frequency_it_is_that_of_the_program),
        cmocka_unit_test(on_a_terminal_one_line_is_redrawn_and_ended_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
