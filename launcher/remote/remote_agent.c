/* An agent that another crun started: reads its order, and sets this process up by it (remote_agent.h). */
#include "launcher/remote/remote_agent.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/err.h"
#include "common/job/exitcode.h"
#include "launcher/guard/guardian.h"
#include "launcher/remote/remote_wire.h"

#define ORDER_MS 60000
#define FIRST_FREE_FD 10 /* lower numbers may be used by a shell */

struct order {
    char token_option[64], control_option[32];
    char **argv;
    int argc;
};

/* Keep the token in a memory file that workers do not inherit: it is neither in a file nor on a command line. */
static int keep_token(struct order *o, const char *token, struct err *e)
{
    const int fd = memfd_create("crun-token", MFD_CLOEXEC);
    const size_t n = strlen(token);
    if (fd < 0 || fchmod(fd, 0600) < 0 || write(fd, token, n) != (ssize_t)n)
        return err_errno(e, errno, "no place in memory for the job's secret");
    snprintf(o->token_option, sizeof o->token_option, "--token-file=/proc/self/fd/%d", fd);
    o->argv[o->argc++] = o->token_option;
    return 0;
}

/* Keep standard input for orders to crun; workers get /dev/null. */
static int keep_control(struct order *o, struct err *e)
{
    const int control = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, FIRST_FREE_FD);
    const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (control < 0 || null < 0 || dup2(null, STDIN_FILENO) < 0)
        return err_errno(e, errno, "standard input");
    close(null);
    snprintf(o->control_option, sizeof o->control_option, "--control-fd=%d", control);
    o->argv[o->argc++] = o->control_option;
    return 0;
}

static int set_variable(char *text, struct err *e)
{
    char *equals = strchr(text, '=');
    if (!equals)
        return err_set(e, ERR_CORRUPT, "what the starting crun sent is not well formed");
    *equals = 0;
    const int rc = setenv(text, equals + 1, 1) == 0 ? 0 : err_errno(e, errno, "environment");
    *equals = '='; /* argv's words follow each other in one buffer, so restore it */
    return rc;
}

static int apply_word(struct order *o, char *word, struct err *e)
{
    switch (word[0]) {
    case REMOTE_FOLDER:
        return chdir(word + 1) == 0 ? 0 : err_errno(e, errno, "the folder %s cannot be entered here", word + 1);
    case REMOTE_TOKEN:
        return keep_token(o, word + 1, e);
    case REMOTE_SIGNALS:
        return keep_control(o, e);
    case REMOTE_VARIABLE:
        return set_variable(word + 1, e);
    case REMOTE_ARGUMENT:
        o->argv[o->argc++] = word + 1;
        return 0;
    default:
        return err_set(e, ERR_CORRUPT, "the crun that started this one is of another version");
    }
}

static int read_order(struct order *o, struct buf *words, struct err *e)
{
    size_t n = 0;
    TRY(remote_read(STDIN_FILENO, words, ORDER_MS, e));
    for (size_t at = 0; at < words->len; at += strlen(words->data + at) + 1)
        n++;
    o->argv = calloc(n + 2, sizeof *o->argv);
    if (!o->argv)
        return err_errno(e, ENOMEM, "arguments");
    for (size_t at = 0; at < words->len; at += strlen(words->data + at) + 1)
        TRY(apply_word(o, words->data + at, e));
    return 0;
}

static void free_order(struct order *o, struct buf *words)
{
    if (words->data)
        explicit_bzero(words->data, words->cap);
    buf_free(words);
    free(o->argv);
}

int remote_agent_main(const struct guardian_programs *programs)
{
    struct order o = {0};
    struct buf words;
    struct err e = {0};
    int code = EXIT_UNAVAILABLE;
    const pid_t own = getpid();
    buf_init(&words, REMOTE_ORDER_MAX + 1);
    if (read_order(&o, &words, &e) < 0) {
        fprintf(stderr, "crun: %s\n", e.text);
    } else {
        printf(REMOTE_HELLO "\n");
        fflush(stdout);
        code = guardian_run(programs, o.argc, o.argv); /* the arguments point into words */
        if (getpid() == own)                           /* its agent returns as well */
            printf(REMOTE_BYE "\n");
    }
    free_order(&o, &words);
    return code;
}
