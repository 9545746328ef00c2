/* sleepers N: so many processes that do nothing, until its standard input ends. "ready" when they are there. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    char byte;
    signal(SIGCHLD, SIG_IGN); /* nobody has to reap them */
    for (int n = argc > 1 ? atoi(argv[1]) : 0; n > 0; n--) {
        const pid_t pid = fork();
        if (pid < 0)
            return 1;
        if (pid == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            close(STDIN_FILENO);
            close(STDOUT_FILENO);
            for (;;)
                pause();
        }
    }
    puts("ready");
    fflush(stdout);
    return read(STDIN_FILENO, &byte, 1) < 0;
}
