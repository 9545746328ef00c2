/* What has to succeed in a test: the expression gets `e` to report to, and its sentence fails the case. Include after
 * cmocka.h. */
#ifndef CRUN_TESTS_MUST_H
#define CRUN_TESTS_MUST_H

#include "common/base/err.h"

#define MUST(expr)                                                                                                     \
    do {                                                                                                               \
        struct err must_e = {0};                                                                                       \
        struct err *const e = &must_e;                                                                                 \
        if ((expr) < 0)                                                                                                \
            fail_msg("%s: %s", #expr, must_e.text);                                                                    \
    } while (0)

#endif
