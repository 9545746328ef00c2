/* How another host is reached: the words of --rsh (ssh, or a substitute), and the command for the shell there. Used
 * by remote_plan.h for agents, and by launcher/tools/doctor/ for its probes. */
#ifndef CRUN_LAUNCHER_REMOTE_SHELL_H
#define CRUN_LAUNCHER_REMOTE_SHELL_H

#include <stdbool.h>

#include "launcher/remote/hosts.h"

struct err;

#define REMOTE_RSH_WORDS 32
#define REMOTE_PATH_MAX 4096

struct remote_shell {
    char text[1024];                    /* that the words point into */
    char *rsh[REMOTE_RSH_WORDS + 1];    /* NULL-terminated */
    char crun[REMOTE_PATH_MAX];         /* on the other hosts */
    char command[REMOTE_PATH_MAX + 64]; /* as their shells read it */
};

/* rsh: as typed; words separated by blanks, or the path of a program. crun: its path on the other hosts, NULL: as
 * here. word: the command of crun to run there. ERR_USAGE. */
int remote_shell_make(struct remote_shell *s, const char *rsh, const char *crun, const char *word, struct err *e);

/* The command line for a host, NULL-terminated; at most REMOTE_RSH_WORDS + 2 words, which point into s and h. */
void remote_shell_words(const struct remote_shell *s, const struct host *h, char *ret[REMOTE_RSH_WORDS + 3]);

/* Find which of n hosts are this machine; a name with a user never is. Asks the name service for all of them at
 * once, for 2 s at most, or until abort_fd (-1: none) is readable: hosts not known then count as other machines. */
void remote_find_local(const struct host *hosts, int n, int abort_fd, bool *ret);

#endif
