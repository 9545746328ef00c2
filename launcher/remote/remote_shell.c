/* Builds the command line that reaches a host, and finds hosts that are this machine (remote_shell.h). */
#include "launcher/remote/remote_shell.h"

#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/net/addr.h"
#include "common/net/resolve.h"
#include "launcher/base/shell_word.h"
#include "launcher/rendezvous/addresses.h"

#define RESOLVE_MS 2000

/* Is the host this machine? Decides without the name service, or starts a look-up. */
static bool look(const struct host *h, struct lookup **ret)
{
    char own[HOSTS_NAME_MAX + 1] = "";
    struct addrinfo *found;
    gethostname(own, sizeof own - 1);
    if (strchr(h->name, '@'))
        return false;
    if (addr_host_is_loopback(h->name) || strcasecmp(h->name, own) == 0)
        return true;
    if (resolve_start(h->name, "1", &found, ret, NULL) != 1)
        return false;
    const bool is_own = addresses_are_own(found);
    freeaddrinfo(found);
    return is_own;
}

static bool await(const struct host *h, struct lookup *l, int64_t deadline, int abort_fd)
{
    struct addrinfo *found;
    if (wait_fd(resolve_fd(l), POLLIN, deadline, abort_fd, NULL) < 0) {
        resolve_abandon(l);
        return false;
    }
    if (resolve_take(l, h->name, &found, NULL) < 0)
        return false;
    const bool is_own = addresses_are_own(found);
    freeaddrinfo(found);
    return is_own;
}

void remote_find_local(const struct host *hosts, int n, int abort_fd, bool *ret)
{
    struct lookup **asked = calloc((size_t)n, sizeof *asked);
    const int64_t deadline = clock_ms() + RESOLVE_MS;
    for (int i = 0; i < n; i++)
        ret[i] = asked && look(&hosts[i], &asked[i]);
    for (int i = 0; i < n; i++)
        if (asked && asked[i])
            ret[i] = await(&hosts[i], asked[i], deadline, abort_fd);
    free(asked);
}

/* Is the whole text the path of a program, which may contain blanks? */
static bool is_program(const char *path)
{
    struct stat st;
    return strchr(path, '/') && stat(path, &st) == 0 && S_ISREG(st.st_mode) && access(path, X_OK) == 0;
}

static int split_rsh(struct remote_shell *s, const char *rsh, struct err *e)
{
    char *rest = NULL;
    int n = 0;
    if (strlen(rsh) >= sizeof s->text)
        return err_set(e, ERR_USAGE, "--rsh: expected at most %zu characters", sizeof s->text - 1);
    strcpy(s->text, rsh);
    if (is_program(rsh)) {
        s->rsh[0] = s->text;
        return 0;
    }
    for (char *w = strtok_r(s->text, " ", &rest); w; w = strtok_r(NULL, " ", &rest)) {
        if (n == REMOTE_RSH_WORDS)
            return err_set(e, ERR_USAGE, "--rsh: expected at most %d words", REMOTE_RSH_WORDS);
        s->rsh[n++] = w;
    }
    return n > 0 ? 0 : err_set(e, ERR_USAGE, "--rsh: expected a command such as ssh");
}

int remote_shell_make(struct remote_shell *s, const char *rsh, const char *crun, const char *word, struct err *e)
{
    char quoted[REMOTE_PATH_MAX];
    ssize_t n = -1;
    *s = (struct remote_shell){0};
    TRY(split_rsh(s, rsh, e));
    if (crun)
        n = snprintf(s->crun, sizeof s->crun, "%s", crun);
    else if ((n = readlink("/proc/self/exe", s->crun, sizeof s->crun - 1)) > 0)
        s->crun[n] = 0;
    if (n <= 0 || n >= (ssize_t)sizeof s->crun - 64)
        return err_set(e, ERR_USAGE, "crun's own path is not known: expected --remote-crun PATH");
    snprintf(s->command, sizeof s->command, "exec %s %s", shell_quote(s->crun, quoted, sizeof quoted), word);
    return 0;
}

void remote_shell_words(const struct remote_shell *s, const struct host *h, char *ret[REMOTE_RSH_WORDS + 3])
{
    int n = 0;
    for (; s->rsh[n]; n++)
        ret[n] = s->rsh[n];
    ret[n++] = (char *)h->name;
    ret[n++] = (char *)s->command;
    ret[n] = NULL;
}
