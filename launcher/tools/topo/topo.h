/* `crun topo`: how GPUs and network adapters are connected, in the form of `nvidia-smi topo -m`, and the cores of
 * this machine. */
#ifndef CRUN_LAUNCHER_TOPO_H
#define CRUN_LAUNCHER_TOPO_H

#include "common/args/args.h"

extern const struct arg_program topo_program;

/* argv[0] is "topo". Returns the exit code. Creates no context on a GPU. */
int topo_main(int argc, char **argv);

#endif
