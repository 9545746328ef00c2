/* hold PID stop|spin: a process in somebody else's hands, by ptrace(2).
 *
 *   stop   it is stopped, as under a debugger, until our standard input ends
 *   spin   its first thread runs in a circle from here on, wherever it was (x86-64 only)
 *
 * "ready" when it is so; exit code 77 where this cannot be done. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SKIP = 77 };

static void ready(void)
{
    puts("ready");
    fflush(stdout);
}

#if defined(__x86_64__)
/* jmp to itself, where it is; orig_rax: the system call that was interrupted is not begun anew. */
static int spin(pid_t pid)
{
    struct user_regs_struct regs;
    if (ptrace(PTRACE_GETREGS, pid, NULL, &regs) < 0)
        return SKIP;
    regs.orig_rax = (unsigned long long)-1;
    const long word = ptrace(PTRACE_PEEKTEXT, pid, (void *)regs.rip, NULL);
    if (ptrace(PTRACE_SETREGS, pid, NULL, &regs) < 0 ||
        ptrace(PTRACE_POKETEXT, pid, (void *)regs.rip, (void *)((word & ~0xffffL) | 0xfeebL)) < 0 ||
        ptrace(PTRACE_DETACH, pid, NULL, NULL) < 0)
        return SKIP;
    ready();
    return 0;
}
#else
static int spin(pid_t pid)
{
    return SKIP;
}
#endif

int main(int argc, char **argv)
{
    const pid_t pid = argc > 2 ? (pid_t)atoi(argv[1]) : 0;
    int status;
    char byte;
    if (pid <= 0 || ptrace(PTRACE_SEIZE, pid, NULL, NULL) < 0 || ptrace(PTRACE_INTERRUPT, pid, NULL, NULL) < 0 ||
        waitpid(pid, &status, __WALL) != pid)
        return SKIP;
    if (strcmp(argv[2], "spin") == 0)
        return spin(pid);
    ready();
    return read(STDIN_FILENO, &byte, 1) < 0;
}
