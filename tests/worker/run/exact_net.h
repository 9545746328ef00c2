/* The network of test_exact.c: two residual blocks over images of 16 x 16, 37 classes, less than 20,000 parameters. */
#ifndef CRUN_TESTS_EXACT_NET_H
#define CRUN_TESTS_EXACT_NET_H

#include "worker/program/split.h"

struct err;

int exact_net(struct program **ret, const struct split *s, struct err *e);

#endif
