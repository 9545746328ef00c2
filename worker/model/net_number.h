/* Arithmetic of a model's text: + - * / ( ), sqrt(), numbers and names. Pure. */
#ifndef CRUN_WORKER_NET_NUMBER_H
#define CRUN_WORKER_NET_NUMBER_H

#include <stddef.h>

struct err;

struct net_names { /* 0 and *ret, or -EINVAL with *e; n: bytes of name */
    int (*value)(void *ctx, const char *name, size_t n, double *ret, struct err *e);
    void *ctx;
};

/* The value of text[n]. names NULL: there are none. -EINVAL: one sentence; a value that is not finite, too. */
int net_number(const char *text, size_t n, const struct net_names *names, double *ret, struct err *e);

#endif
