/* For LD_PRELOAD: a process dies in the moment in which its temporary folder is made. */
#include <dlfcn.h>
#include <signal.h>
#include <stdlib.h>

char *mkdtemp(char *template)
{
    char *(*real)(char *);
    *(void **)&real = dlsym(RTLD_NEXT, "mkdtemp");
    char *made = real(template);
    if (made)
        raise(SIGKILL);
    return made;
}
