/* Table for `crun explain`: messages about workers that hang or are slow. */
#include "launcher/tools/explain/explain_table.h"

#include <stddef.h>

const struct explain_message explain_hangs[] = {
    {"rank * has stood *\nno rank has progressed for *\nno worker of the job has given a sign of life for *\n"
     "rank * hung *\nall ranks * hung *",
     "no step, or no sign of life, came for longer than --hang-timeout allows: the round ends as by a failure; ranks "
     "without state end before those that have it",
     "read hang-rank-N.txt of the rank that is named; docs/guide/hangs.md says how long a step may take"},
    {"rank* ha* not launched * of communicator *\nrank* * launched * of communicator * where *\n"
     "ranks * wait for each other, each in another communicator\nNCCL's RAS does not reach the process*\n"
     "; no sign of life for * s\nand no sign of life has come for * s: rank *",
     "--hang-witness ras: by NCCL's own counts these ranks have not launched the collective in which the others wait; "
     "their signs of life alone decide from then on",
     "look at the stacks of the rank that is named (hang-rank-N.txt): it waits for something else than NCCL, has left "
     "a loop early, or took another branch than the others"},
    {"for which others waited, goes on", "a rank that was named as late gave a sign of life",
     "nothing; it was slow, so look at what it did then"},
    {"NCCL's RAS cannot tell: all ranks*\nNCCL's RAS knows of no communicator*",
     "the ranks have launched the same collectives, or launch them where RAS does not count: in CUDA graphs, as sends "
     "and receives; sizes may differ",
     "look at the stacks, and at the Flight Recorder's files beside them"},
    {"rank * calls * of group * with *; * with *",
     "by PyTorch's Flight Recorder one rank makes another collective call than the others, or with other sizes or types",
     "look for a branch that depends on the rank, and for batches or parameters whose sizes differ"},
    {"Flight Recorder, *", "what PyTorch's Flight Recorder has of the workers that hang was saved, or is dumped there",
     "read it; dumps: python -m torch.distributed.flight_recorder.fr_trace"},
    {"NCCL's RAS is no witness here:\nmember 'hash' is no number\nit has no version and communicators\n"
     "that is not NCCL's RAS\nthe RAS there knows no process of this job\nit answers no JSON, so NCCL is older\n"
     "no answer came in time\nits answer is too large\nit closed the connection without an answer\n"
     "an address of IPv4 or IPv6 with a port is expected\nnobody listens there",
     "--hang-witness ras got no answer of NCCL's RAS that counts; the line says why",
     "NCCL 2.29.2 or later, and no NCCL_RAS_ENABLE=0; NCCL_RAS_ADDR unset, or HOST:PORT; a program without NCCL "
     "has no RAS"},
    {"main thread:\nwhat all threads of\nwhat the threads of\nthe stacks of all threads\nprints more than * bytes\n"
     "did not end within * ms",
     "a worker hung; its call stacks were saved, or could not be", "read hang-rank-N.txt; install py-spy or elfutils"},
    {NULL, NULL, NULL},
};
