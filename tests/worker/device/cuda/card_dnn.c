#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/worker/device/cuda/card.h"
#include "tests/worker/device/cuda/properties.h"
#include "tests/worker/scratch/scratch.h"

char *card_props;
const char *card_dir;

static int set_up(void **state)
{
    const int rc = scratch_make(state);
    card_dir = *state;
    return rc;
}

void card_dies(void (*plan)(const char *cache), const char *cache)
{
    int status;
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        plan(cache);
        _exit(0);
    }
    assert_int_equal(child, waitpid(child, &status, 0));
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

int card_main(int argc, char **argv, const char *name, const struct CMUnitTest *tests, size_t n)
{
    if (argc != 2) {
        fprintf(stderr, "usage: %s PROPERTIES.json\n", argv[0]);
        return 2;
    }
    card_props = properties_read(argv[1]);
    const int rc = _cmocka_run_group_tests(name, tests, n, set_up, scratch_drop);
    free(card_props);
    return rc;
}
