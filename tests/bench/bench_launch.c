/* crun beside the floor of fork and exec, MPICH's hydra and torchrun, in one run: start, restart after kill -9,
 * idleness.
 *
 *     bench_launch [--check] [--effort X] [--only start|restart|idle] [--before PATH] [--hydra PATH] [--torchrun PATH]
 *                  CRUN WORKER
 *
 * What is not given is looked for in $PATH (mpiexec.hydra; $TORCHRUN), and said to be missing. --before: an older crun,
 * which takes turns with the other one. --check: exit 1 if an aim is missed. */
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/bench/launch.h"

static const char *executable(const char *path)
{
    return path && access(path, X_OK) == 0 ? path : NULL;
}

/* Borrowed or leaked; NULL: nowhere in $PATH. */
static const char *find(const char *name)
{
    char *path = strdup(getenv("PATH") ? getenv("PATH") : "/usr/bin"), *rest = path, *dir;
    while ((dir = strsep(&rest, ":"))) {
        char file[4096];
        snprintf(file, sizeof file, "%s/%s", dir, name);
        if (executable(file))
            return strdup(file);
    }
    return NULL;
}

static void remove_dir(const char *dir)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/stamps", dir);
    unlink(path);
    rmdir(dir);
}

static void usage(void)
{
    fprintf(stderr, "usage: bench_launch [--check] [--effort X] [--only start|restart|idle] [--before PATH] [--hydra "
                    "PATH] [--torchrun PATH] CRUN WORKER\n");
    exit(2);
}

int main(int argc, char **argv)
{
    static const struct option table[] = {{"check", no_argument, NULL, 'c'},
                                          {"effort", required_argument, NULL, 'e'},
                                          {"only", required_argument, NULL, 'o'},
                                          {"hydra", required_argument, NULL, 'h'},
                                          {"torchrun", required_argument, NULL, 't'},
                                          {"before", required_argument, NULL, 'b'},
                                          {NULL}};
    struct launch_options o = {.effort = 1, .hydra = find("mpiexec.hydra"), .torchrun = executable(getenv("TORCHRUN"))};
    char dir[] = "/tmp/bench-launch-XXXXXX";
    const char *only = "";
    bool check = false;
    for (int opt; (opt = getopt_long(argc, argv, "", table, NULL)) != -1;) {
        if (opt == 'c')
            check = true;
        else if (opt == 'e')
            o.effort = strtod(optarg, NULL);
        else if (opt == 'o')
            only = optarg;
        else if (opt == 'h')
            o.hydra = executable(optarg);
        else if (opt == 't')
            o.torchrun = executable(optarg);
        else if (opt == 'b' && !(o.before = executable(optarg)))
            launch_die("--before %s: no program", optarg);
        else if (opt == 'b')
            continue;
        else
            usage();
    }
    if (optind + 2 != argc || o.effort <= 0 || o.effort > 3)
        usage();
    o.crun = argv[optind];
    o.worker = argv[optind + 1];
    if (!mkdtemp(dir))
        launch_die("%s: %s", dir, strerror(errno));
    setenv("HOME", dir, 1); /* nobody's crun.conf */
    signal(SIGPIPE, SIG_IGN);
    launch_open_fifo(dir);
    printf("hydra: %s; torchrun: %s\n", o.hydra ? o.hydra : "not here, skipped",
           o.torchrun ? o.torchrun : "not here, skipped");
    if (!*only || strcmp(only, "start") == 0)
        launch_bench_start(&o);
    if (!*only || strcmp(only, "restart") == 0)
        launch_bench_restart(&o);
    if (!*only || strcmp(only, "idle") == 0)
        launch_bench_idle(&o);
    remove_dir(dir);
    return launch_verdict() > 0 && check ? 1 : 0;
}
