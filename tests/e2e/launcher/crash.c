/* A worker that crashes: `smash` with a stack that it has overwritten, `abort` likewise, by abort(); `fork` in a
 * process that it forked, before it fails itself. */
#include <crun.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile int bytes = 4096;

/* Through the return addresses of all that called it. */
__attribute__((noinline)) static void overwrite(int aborts)
{
    volatile char local[16];
    for (int i = 0; i < bytes; i++)
        local[i] = 'A';
    if (local[0] == 'A' && aborts)
        abort();
}

__attribute__((noinline)) static void call_deeper(int depth, int aborts)
{
    volatile char room[256];
    room[0] = 1;
    if (depth > 0)
        call_deeper(depth - 1, aborts);
    else
        overwrite(aborts);
    room[1] = room[0];
}

int main(int argc, char **argv)
{
    struct crun_info info;
    if (argc < 2 || crun_init(&info) < 0 || crun_catch_crashes() < 0)
        return 1;
    if (strcmp(argv[1], "fork") != 0) {
        call_deeper(40, strcmp(argv[1], "abort") == 0);
        return 2;
    }
    const pid_t pid = fork();
    if (pid == 0)
        *(volatile int *)16 = 1;
    waitpid(pid, NULL, 0);
    return 3;
}
