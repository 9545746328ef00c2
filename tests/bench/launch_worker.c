/* The smallest worker that can be timed: tells the FIFO at $BENCH_FIFO when it ran its first instruction and who it is
 * (struct launch_stamp), then ends ("exit") or waits for a signal ("stay"). */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/bench/launch.h"

int main(int argc, char **argv)
{
    const struct launch_stamp stamp = {.ns = launch_now_ns(), .pid = getpid()};
    const char *path = getenv("BENCH_FIFO");
    const int fd = path ? open(path, O_WRONLY | O_CLOEXEC) : -1;
    if (argc < 2 || write(fd, &stamp, sizeof stamp) != sizeof stamp)
        return 2;
    if (strcmp(argv[1], "stay") == 0)
        pause();
    return 0;
}
