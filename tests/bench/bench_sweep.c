/* What it costs to find the processes below one (launcher/guard/procs.h) on a host that runs thousands: down the own
 * tree, and over all processes, as where the kernel has no /proc/PID/task/TID/children. In time of a core, which other
 * load changes little.
 *
 *     bench_sweep SLEEPERS [N]      N: processes that have nothing to do with it (20,000)
 *     bench_sweep SLEEPERS N check  exit 1 if the pass over all takes more than 10 us a process, and more than 1.15
 *                                   times the floor
 *
 * The floor of the pass, in turns with it: to list /proc, and to open, read and close each /proc/PID/stat. Nearly all
 * of that is the kernel's, and another machine's kernel may take more than 10 us for it. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "launcher/guard/procs.h"
#include "launcher/guard/tree.h"

#define AIM_RATIO 1.15 /* to the floor */

enum { OWN = 64, LOOKS = 21, AIM_NS = 10000 };

static bool is_old; /* no such kernel file */

/* In place of libc's. */
int access(const char *path, int mode)
{
    if (is_old && strcmp(path, "/proc/thread-self/children") == 0) {
        errno = ENOENT;
        return -1;
    }
    return (int)syscall(SYS_faccessat, -100, path, mode);
}

static size_t count_all(void)
{
    size_t n = 0;
    DIR *d = opendir("/proc");
    for (struct dirent *e; d && (e = readdir(d));)
        n += e->d_name[0] >= '0' && e->d_name[0] <= '9';
    if (d)
        closedir(d);
    return n;
}

static int by_value(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static int64_t core_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

static int64_t look(pid_t root)
{
    struct procs ps;
    const int64_t begun = core_ns();
    if (!procs_below(&ps, root) || ps.n != OWN) {
        fprintf(stderr, "bench_sweep: %zu processes found, expected %d\n", ps.n, OWN);
        exit(1);
    }
    procs_free(&ps);
    return core_ns() - begun;
}

static int64_t floor_of_pass(void)
{
    char path[32], text[768];
    const int64_t begun = core_ns();
    DIR *d = opendir("/proc");
    for (struct dirent *e; d && (e = readdir(d));) {
        if (e->d_name[0] < '0' || e->d_name[0] > '9')
            continue;
        stpcpy(stpncpy(path, e->d_name, sizeof path - sizeof "/stat"), "/stat");
        const int fd = openat(dirfd(d), path, O_RDONLY | O_CLOEXEC);
        const ssize_t ignored = read(fd, text, sizeof text);
        (void)ignored;
        close(fd);
    }
    if (d)
        closedir(d);
    return core_ns() - begun;
}

/* Sorts them. */
static void print(const char *what, int64_t ns[LOOKS], size_t n)
{
    qsort(ns, LOOKS, sizeof *ns, by_value);
    printf("%-32s median %8.3f ms, best %8.3f, worst %8.3f; %.2f us a process of %zu\n", what,
           (double)ns[LOOKS / 2] / 1e6, (double)ns[0] / 1e6, (double)ns[LOOKS - 1] / 1e6,
           (double)ns[LOOKS / 2] / 1e3 / (double)n, n);
}

/* A process with OWN children that do nothing. */
static pid_t start_tree(void)
{
    int ready[2];
    char byte;
    if (pipe(ready) < 0)
        exit(1);
    const pid_t root = fork();
    for (int i = 0; root == 0 && i < OWN; i++)
        if (fork() == 0)
            for (;;)
                pause();
    if (root == 0) {
        const bool told = write(ready[1], "", 1) == 1;
        while (told)
            pause();
    }
    if (root < 0 || read(ready[0], &byte, 1) != 1)
        exit(1);
    return root;
}

/* So many that have nothing to do with it, until the end of this process. */
static bool start_others(const char *sleepers, const char *n)
{
    int in[2], out[2];
    char byte;
    if (pipe(in) < 0 || pipe(out) < 0)
        return false;
    if (fork() == 0) {
        dup2(in[0], STDIN_FILENO);
        dup2(out[1], STDOUT_FILENO);
        close(in[1]);
        execl(sleepers, sleepers, n, (char *)NULL);
        _exit(127);
    }
    close(in[0]);
    close(out[1]);
    return read(out[0], &byte, 1) == 1;
}

int main(int argc, char **argv)
{
    int64_t ns[LOOKS], floor_ns[LOOKS], permille[LOOKS];
    if (argc < 2)
        return 2;
    if (!start_others(argv[1], argc > 2 ? argv[2] : "20000")) {
        fprintf(stderr, "bench_sweep: this machine does not run so many processes\n");
        return 77;
    }
    const pid_t root = start_tree();
    for (int i = 0; i < LOOKS; i++)
        ns[i] = look(root);
    print("down the own tree", ns, OWN);
    is_old = true;
    const size_t all = count_all();
    for (int i = 0; i < LOOKS; i++) {
        floor_ns[i] = floor_of_pass();
        ns[i] = look(root);
        permille[i] = ns[i] * 1000 / floor_ns[i];
    }
    print("floor of a pass", floor_ns, all);
    print("one pass over all processes", ns, all);
    qsort(permille, LOOKS, sizeof *permille, by_value);
    const double ratio = (double)permille[LOOKS / 2] / 1000;
    printf("a pass takes %.2f times the floor (median of %d pairs, half of all between %.2f and %.2f)\n", ratio, LOOKS,
           (double)permille[LOOKS / 4] / 1000, (double)permille[LOOKS * 3 / 4] / 1000);
    const bool missed = (double)ns[LOOKS / 2] / (double)all > AIM_NS && ratio > AIM_RATIO;
    is_old = false;
    tree_kill_all(30000);
    return missed && argc > 3 ? 1 : 0;
}
