/* A trainer that stands at a step, for LD_PRELOAD.
 *
 *   FAULT_STEP_FILE=FILE  while FILE holds a step: write(2) of a progress line ("Epoch 2/5 [ 7/20]") of this step or
 *                         of a later one does not return; the line itself is written before
 *
 * Whoever reads such a line finds the rank that wrote it at this step. The other ranks have done this step as well, and
 * wait for that rank in the next one. A stand of STAND_S seconds aborts the process: the test that should have ended
 * it is gone. */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define STAND_S 600
#define LOOK_NS 2000000

extern char *program_invocation_short_name;

/* Steps done by all epochs; 0 for another line. */
static long step_of(const char *line, size_t n)
{
    char text[256];
    long epoch, step, steps;
    const char *at;
    snprintf(text, sizeof text, "%.*s", (int)(n < sizeof text ? n : sizeof text - 1), line);
    at = strstr(text, "Epoch ");
    return at && sscanf(at, "Epoch %ld/%*d [%ld/%ld]", &epoch, &step, &steps) == 3 ? (epoch - 1) * steps + step : 0;
}

static bool stands(const char *path, long step)
{
    char text[32] = "";
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    const ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    return n > 0 && step >= atol(text);
}

ssize_t write(int fd, const void *data, size_t n)
{
    ssize_t (*real)(int, const void *, size_t);
    *(void **)&real = dlsym(RTLD_NEXT, "write");
    const char *path = getenv("FAULT_STEP_FILE");
    const ssize_t rc = real(fd, data, n);
    const struct timespec look = {.tv_nsec = LOOK_NS};
    const time_t begun = time(NULL);
    const long step =
        path && fd == STDERR_FILENO && strcmp(program_invocation_short_name, "trainer") == 0 ? step_of(data, n) : 0;
    while (step && stands(path, step)) {
        if (time(NULL) - begun > STAND_S)
            abort();
        nanosleep(&look, NULL);
    }
    return rc;
}
