/* `crun topo`: how GPUs and network adapters hang together, as `nvidia-smi topo -m` prints it, and the cores of this
 * machine. */
#ifndef CRUN_LAUNCHER_TOPO_H
#define CRUN_LAUNCHER_TOPO_H

#include "common/args/args.h"

extern const struct arg_program topo_program;

/* argv[0] is "topo". Returns the exit code. Makes no context on any GPU. */
int topo_main(int argc, char **argv);

#endif
