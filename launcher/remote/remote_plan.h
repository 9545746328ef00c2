/* What remote.h tells each host. */
#ifndef CRUN_LAUNCHER_REMOTE_PLAN_H
#define CRUN_LAUNCHER_REMOTE_PLAN_H

#include <stdbool.h>
#include <stdio.h>

#include "common/auth/auth.h"
#include "common/base/buf.h"
#include "launcher/config/home.h"
#include "launcher/remote/hosts.h"
#include "launcher/remote/remote_shell.h"

struct config;
struct err;

struct remote_plan {
    const struct config *c;
    struct hosts hosts;
    bool *local; /* true if the host is this machine */
    struct remote_shell shell;
    char endpoint[HOME_HOST_MAX + 16]; /* "": the user gave one, or the job needs none */
    struct auth_token token;           /* principal "": none */
    int argc, first_operand;
    char **argv;
};

/* Waits for the name service, 2 s at most, and only until abort_fd (-1: none) is readable; the plan is unusable
 * then. */
int remote_plan_make(struct remote_plan *p, const struct config *c, int argc, char **argv, int first_operand,
                     int abort_fd, struct err *e);
/* Print one line if --nproc-per-node was given but applies to no host. */
void remote_plan_say_unused(const struct remote_plan *p, FILE *out);
/* Make the order of host i, head included; the caller wipes b. */
int remote_plan_order(const struct remote_plan *p, int i, struct buf *b, struct err *e);
/* Append the options for host i that come after the typed ones, each with its NUL. -ENOMEM, -E2BIG. */
int remote_plan_options(const struct remote_plan *p, int i, struct buf *b);
void remote_plan_free(struct remote_plan *p);

#endif
