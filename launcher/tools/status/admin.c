/* `crun admin`: sends one request over one blocking connection (admin.h). */
#include "launcher/tools/status/admin.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "common/base/err.h"
#include "common/job/exitcode.h"
#include "launcher/outside/ask_options.h"
#include "launcher/tools/status/status.h"

struct admin_config {
    struct ask_options ask;
    const char *principal;
    bool json;
};

static const struct arg_spec specs[] = {
    ARG_GROUP("Administration"),
    ASK_OPTIONS("HOST[:PORT] of a rendezvousd, or of a crun that hosts a rendezvous"),
    {.name = "principal",
     .type = ARG_STRING,
     .at = offsetof(struct admin_config, principal),
     .metavar = "NAME",
     .help = "whose RUN it is, where several principals have one of that name"},
    {.name = "json",
     .type = ARG_FLAG,
     .at = offsetof(struct admin_config, json),
     .help = "list: print the rendezvous' answer as it is, JSON"},
    ARG_END,
};

const struct arg_program admin_program = {
    .name = "crun admin",
    .usage = "[options] list | drain RUN | evict RUN",
    .summary = "For operators of a rendezvous, who look after the jobs of all principals (rendezvousd --operators; "
               "without --token-file its own user): list them; drain RUN: its nodes stop in good order; evict RUN: it "
               "is over at once, whatever state it is in, and its nodes are told so.",
    .specs = specs,
    .operands = ARG_OPERANDS,
};

static int complain(const struct err *e, int code)
{
    fprintf(stderr, "crun admin: %s\n", e->text);
    return code;
}

static int check(int argc, char **argv, const struct admin_config *c, struct err *e)
{
    static const char *const verbs[] = {"list", "drain", "evict"};
    for (size_t i = 0; argc > 0 && i < sizeof verbs / sizeof *verbs; i++) {
        if (strcmp(argv[0], verbs[i]) != 0)
            continue;
        if (argc != (i == 0 ? 1 : 2))
            return err_set(e, ERR_USAGE, i == 0 ? "list: expected nothing after it" : "%s: expected one RUN", verbs[i]);
        if (i == 0 && c->principal)
            return err_set(e, ERR_USAGE, "--principal has no effect on list: it is for drain and evict");
        return i > 0 && c->json ? err_set(e, ERR_USAGE, "--json has no effect on %s: it is for list", verbs[i]) : 0;
    }
    return err_set(e, ERR_USAGE, "%s%s%s: expected list, drain RUN or evict RUN", argc > 0 ? "'" : "no command",
                   argc > 0 ? argv[0] : "", argc > 0 ? "'" : "");
}

/* words: verb and, except for list, run id. */
static int ask(struct rdzv_ask *a, int n, char **words, const struct admin_config *c, struct err *e)
{
    const char *const request[] = {"RDZV.ADMIN", words[0], n > 1 ? words[1] : NULL, c->principal};
    redisReply *r;
    TRY(rdzv_ask_open(a, e));
    TRY(rdzv_ask(a, 1 + n + (c->principal != NULL), request, &r, e));
    int rc = 0;
    if (r->type == REDIS_REPLY_STRING)
        rc = c->json ? puts(r->str) < 0 : status_print(r->str, STATUS_OWNERS, stdout, e);
    freeReplyObject(r);
    if (fflush(stdout) != 0 || ferror(stdout))
        return err_errno(e, errno, "the terminal");
    return rc < 0 ? rc : 0;
}

int admin_main(int argc, char **argv)
{
    struct admin_config c = {0};
    struct rdzv_ask a = {0};
    struct arg_result r;
    struct err e;
    if (args_parse(&admin_program, argc, argv, &c, &r, &e) < 0)
        return complain(&e, EXIT_USAGE_ERROR);
    if (args_answer(&admin_program, "crun " CRUN_VERSION, &c, &r, stdout))
        return EXIT_OK;
    ask_options_apply(&c.ask, &a);
    if (check(argc - r.first_operand, argv + r.first_operand, &c, &e) < 0 || rdzv_ask_init(&a, c.ask.endpoint, &e) < 0)
        return complain(&e, EXIT_USAGE_ERROR);
    const int rc = ask(&a, argc - r.first_operand, argv + r.first_operand, &c, &e);
    rdzv_ask_finish(&a);
    if (rc == 0)
        return EXIT_OK;
    err_wrap(&e, "%s port %s", a.host, a.port);
    return complain(&e, rc == ERR_REFUSED ? EXIT_FAIL : rc == ERR_USAGE ? EXIT_USAGE_ERROR : EXIT_UNAVAILABLE);
}
