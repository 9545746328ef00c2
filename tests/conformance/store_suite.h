/* The store's promises, checked over any backend. */
#ifndef CRUN_TESTS_CONFORMANCE_STORE_SUITE_H
#define CRUN_TESTS_CONFORMANCE_STORE_SUITE_H

#include <stdbool.h>

struct store;

/* How the program under test gets at its store; set before store_suite_run(). */
struct store_suite {
    struct store *(*open)(void); /* another client of the same store; fails the test if it cannot */
    void (*close)(struct store *s);
    bool (*restart_server)(void); /* NULL: there is none. The new one may have forgotten every key */
};

int store_suite_run(const struct store_suite *suite);

#endif
