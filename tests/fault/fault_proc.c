/* A kernel without CONFIG_PROC_CHILDREN, for LD_PRELOAD: /proc/thread-self/children is not there. */
#include <dlfcn.h>
#include <errno.h>
#include <string.h>
#include <unistd.h>

int access(const char *path, int mode)
{
    int (*real)(const char *, int);
    *(void **)&real = dlsym(RTLD_NEXT, "access");
    if (strcmp(path, "/proc/thread-self/children") == 0) {
        errno = ENOENT;
        return -1;
    }
    return real(path, mode);
}
