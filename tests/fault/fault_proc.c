/* A kernel that lacks something, for LD_PRELOAD: it is without CONFIG_PROC_CHILDREN (/proc/thread-self/children is not
 * there), and with FAULT_PROC_OLD=1 without pidfd_open(2), too. FAULT_PROC_FILTER=clone3 or pidfd_open: a seccomp
 * filter refuses that call. */
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

long syscall(long number, ...)
{
    long (*real)(long, ...);
    long a[6];
    va_list ap;
    va_start(ap, number);
    for (int i = 0; i < 6; i++)
        a[i] = va_arg(ap, long);
    va_end(ap);
    if (number == SYS_pidfd_open && getenv("FAULT_PROC_OLD")) {
        errno = ENOSYS;
        return -1;
    }
    const char *filter = getenv("FAULT_PROC_FILTER");
    if (filter && number == (strcmp(filter, "clone3") == 0 ? SYS_clone3 : SYS_pidfd_open)) {
        errno = EPERM;
        return -1;
    }
    *(void **)&real = dlsym(RTLD_NEXT, "syscall");
    return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

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
