/* A signal in a rare moment, for LD_PRELOAD: a process that
 *
 *   FAULT_SIGNAL_MKDTEMP=n   has just made its temporary folder
 *   FAULT_SIGNAL_RMDIR=n     is about to remove a folder
 *   FAULT_SIGNAL_SOCKETPAIR=n  makes its first pair of sockets, as crun does before anything else
 *
 * gets signal n then. */
#include <dlfcn.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

static void get(const char *variable)
{
    const char *signo = getenv(variable);
    if (signo)
        raise(atoi(signo));
}

char *mkdtemp(char *template)
{
    char *(*real)(char *);
    *(void **)&real = dlsym(RTLD_NEXT, "mkdtemp");
    char *made = real(template);
    get("FAULT_SIGNAL_MKDTEMP");
    return made;
}

int rmdir(const char *path)
{
    int (*real)(const char *);
    *(void **)&real = dlsym(RTLD_NEXT, "rmdir");
    get("FAULT_SIGNAL_RMDIR");
    return real(path);
}

int socketpair(int domain, int type, int protocol, int ends[2])
{
    static int calls;
    int (*real)(int, int, int, int[2]);
    *(void **)&real = dlsym(RTLD_NEXT, "socketpair");
    if (calls++ == 0)
        get("FAULT_SIGNAL_SOCKETPAIR");
    return real(domain, type, protocol, ends);
}
