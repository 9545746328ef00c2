/* A disk with faults, for LD_PRELOAD: files of checkpoints (.../step-N.tmp/<x>.safetensors) only.
 *
 *   FAULT_DISK_FSYNC_MS=n     fsync(2) of such a file takes n milliseconds longer
 *   FAULT_DISK_FULL=FILE      while FILE exists, write(2) to such a file fails with ENOSPC */
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static bool is_checkpoint(int fd)
{
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n <= 0)
        return false;
    path[n] = '\0';
    return strstr(path, "/step-") && strstr(path, ".safetensors");
}

int fsync(int fd)
{
    int (*real)(int);
    *(void **)&real = dlsym(RTLD_NEXT, "fsync");
    const char *ms = getenv("FAULT_DISK_FSYNC_MS");
    if (ms && is_checkpoint(fd)) {
        const struct timespec t = {.tv_sec = atoi(ms) / 1000, .tv_nsec = (long)(atoi(ms) % 1000) * 1000000};
        nanosleep(&t, NULL);
    }
    return real(fd);
}

ssize_t write(int fd, const void *data, size_t n)
{
    ssize_t (*real)(int, const void *, size_t);
    *(void **)&real = dlsym(RTLD_NEXT, "write");
    const char *full = getenv("FAULT_DISK_FULL");
    if (full && access(full, F_OK) == 0 && is_checkpoint(fd)) {
        errno = ENOSPC;
        return -1;
    }
    return real(fd, data, n);
}
