/* What is said at the end, case by case. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <signal.h>
#include <string.h>

#include "launcher/agent/machine/farewell.h"

#define AGAIN "; start it again to go on (exit code 75)"

static const struct {
    struct farewell f;
    enum farewell_kind kind;
    const char *text;
} cases[] = {
    /* it ran to its end, or failed */
    {{.code = 0}, FAREWELL_NONE, ""},
    {{.code = 1}, FAREWELL_NONE, ""},
    {{.code = 1, .bad = true}, FAREWELL_NONE, ""},
    {{.code = 1, .ended = true, .end_code = 1}, FAREWELL_NONE, ""},
    /* a spare */
    {{.code = 72, .idle = true},
     FAREWELL_WHOLE,
     "the job is over; this node waited as a spare to the end and ran no worker (exit code 72, --spare-exit-code)"},
    /* a signal */
    {{.code = 75, .signo = SIGTERM}, FAREWELL_WHOLE, "stopped in good order after SIGTERM" AGAIN},
    {{.code = 75, .signo = SIGTERM, .rough = true}, FAREWELL_WHOLE, "stopped after SIGTERM" AGAIN},
    {{.code = 75, .signo = SIGINT, .notice = "SIGUSR1, a preemption notice"},
     FAREWELL_WHOLE,
     "stopped in good order after SIGINT" AGAIN},
    {{.code = 75, .signo = SIGTERM, .end_unknown = true},
     FAREWELL_WHOLE,
     "stopped by SIGTERM; this node's workers had finished; whether the job has, is unknown (exit code 75)"},
    {{.code = 143, .signo = SIGTERM, .bad = true}, FAREWELL_STOPPED, "stopped by SIGTERM"},
    {{.code = 143, .signo = SIGTERM, .ended = true, .end_code = 75}, FAREWELL_STOPPED, "stopped by SIGTERM"},
    {{.code = 0, .signo = SIGTERM}, FAREWELL_NONE, ""}, /* the workers were done */
    /* a preemption notice */
    {{.code = 75, .notice = "SIGUSR1, a preemption notice"},
     FAREWELL_WHOLE,
     "stopped after SIGUSR1, a preemption notice" AGAIN},
    {{.code = 75, .notice = "SIGUSR1, a preemption notice", .bad = true},
     FAREWELL_WHOLE,
     "stopped after SIGUSR1, a preemption notice" AGAIN},
    {{.code = 5, .notice = "SIGUSR1, a preemption notice", .ended = true, .end_code = 75},
     FAREWELL_STOPPED,
     "stopped by SIGUSR1, a preemption notice"},
    {{.code = 75, .notice = "3600 s, the time limit"}, FAREWELL_WHOLE, "stopped after 3600 s, the time limit" AGAIN},
    {{.code = 1, .notice = "SIGUSR1, a preemption notice"},
     FAREWELL_NONE,
     ""}, /* it failed before that came to anything */
    /* a worker's 75, or another node's drain */
    {{.code = 3, .ended = true, .end_code = 75, .bad = true},
     FAREWELL_STOPPED,
     "stopped because a worker asked for it (exit code 75)"},
    {{.code = 0, .ended = true, .end_code = 75},
     FAREWELL_STOPPED,
     "stopped because a worker asked for it (exit code 75)"},
    {{.code = 75, .ended = true, .end_code = 75, .bad = true}, FAREWELL_STOPPED, "stopped before the end" AGAIN},
    {{.code = 75, .ended = true, .end_code = 75},
     FAREWELL_WHOLE,
     "the workers stopped in good order before the end" AGAIN},
    {{.code = 75, .ended = true, .end_code = 75, .rough = true},
     FAREWELL_WHOLE,
     "the workers were stopped before the end" AGAIN},
    {{.code = 75, .ended = true, .end_code = 75, .unbegun = true, .by = "SIGTERM on node 'a'"},
     FAREWELL_WHOLE,
     "the job was stopped by SIGTERM on node 'a' before its first round here; start it again (exit code 75)"},
    {{.code = 75, .ended = true, .end_code = 75, .unbegun = true},
     FAREWELL_WHOLE,
     "the job was stopped before its first round here: a node it needs was stopped, or an operator drained it; start "
     "it again (exit code 75)"},
};

static void the_end_is_told_as_it_came(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[FAREWELL_MAX];
        const enum farewell_kind kind = farewell(&cases[i].f, text);
        if (kind != cases[i].kind || strcmp(text, cases[i].text) != 0)
            fail_msg("case %zu: %d \"%s\"", i, kind, text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_end_is_told_as_it_came),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
