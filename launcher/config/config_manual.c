/* Sections of crun(1) beside the options. */
#include <stddef.h>

#include "common/job/manual.h"
#include "launcher/config/config.h"

static const struct arg_row example_rows[] = {
    {"crun --nproc-per-node 4 --max-restarts 3 train.py --lr 0.1",
     "Four workers on this machine, started again together up to three times when one dies."},
    {"crun --nnodes 2:4 --nproc-per-node gpu --rdzv-endpoint node1:29500 --rdzv-id myjob train.py",
     "The same command on each node: two to four of them, which may come, leave and die; a worker for each GPU. The "
     "crun on node1 hosts the rendezvous."},
    {"crun -H node1:8,node2:8 train.py", "Two other hosts, by ssh."},
    {"srun --ntasks-per-node=1 crun --nnodes 2 train.py", "Under Slurm: it says where the nodes meet."},
    {"crun --log-dir logs --hang-timeout 10m --failure-file failed.json train.py",
     "Log files for each rank; a round that makes no step for ten minutes ends as if a worker had failed; what went "
     "wrong as JSON."},
    {"crun --dry-run --nproc-per-node 4 train.py",
     "What crun makes of the options and of what a scheduler says; nothing starts."},
    {"crun status --rdzv-endpoint node1:29500", "The jobs that meet there."},
    {NULL, NULL},
};

static const struct arg_section examples = {.title = "EXAMPLES", .rows = example_rows};

const struct arg_section *const config_sections[] = {&manual_environment, &manual_exit_status, &examples, NULL};
