/* Table for `crun explain`: messages that all programs share, and lines of NCCL, CUDA, Gloo and PyTorch. */
#include "launcher/tools/explain/explain_table.h"

#include <stddef.h>

/* Messages of all programs: errors of the system, and values of options. Searched last. */
const struct explain_message explain_general[] = {
    /* --- nodes of a job that do not find each other */
    {"do not trust each other\ndoes not prove who it is\nno place for a secret that\nholds another secret than this one\n"
     "do not have the same secret",
     "the nodes have different secrets, or none", "one CRUN_TOKEN or token file: docs/guide/tokens-and-tls.md"},
    {"no other node has come to *\nno other node of job\nnobody listens at *: the node that has\nanother program of this machine has port *\nthe node of --node-rank 0 hosts the rendezvous\nis one of the two ids wrong\n"
     "looks like a second address\nthe first node of * list",
     "the nodes were not given one place to meet, or one id", "the same on all nodes, a name that all know"},
    {"settings differ from those of job\nnode '*' left: ",
     "this node was started with other settings than the first one",
     "the same --nnodes, --max-restarts and --rdzv-conf on all nodes"},
    /* --- lines of NCCL, CUDA, Gloo and PyTorch, as workers print them */
    {"Connection closed by peer\ngloo/transport/", "Gloo: another rank has ended, or its network has; this one noticed",
     "look at the first rank that failed, which crun's report names"},
    {"Watchdog caught collective operation timeout\nTimed out waiting * for * operation to complete",
     "a rank did not come to a collective operation in time: it hangs, is slow, or takes another path in the program",
     "look at the ranks that are behind; --hang-timeout saves their call stacks"},
    {"ncclRemoteError\nncclInvalidUsage\nncclSystemError\nncclInternalError\nncclUnhandledCudaError\n"
     "unhandled system error\nunhandled cuda error",
     "NCCL failed: a peer that is gone (RemoteError), the network or shared memory (SystemError), or the GPU",
     "NCCL_DEBUG=INFO shows the cause; a larger /dev/shm in containers; NCCL_SOCKET_IFNAME names the network"},
    {"Duplicate GPU detected", "two ranks use one GPU, which NCCL refuses",
     "torch.cuda.set_device(LOCAL_RANK); --nproc-per-node gpu; look at CUDA_VISIBLE_DEVICES"},
    {"invalid device ordinal", "a rank asks for a GPU that it does not see",
     "fewer ranks on this node; LOCAL_RANK, not RANK, is the number of the device"},
    {"CUDA out of memory\nCUDA error: out of memory\nCUDA_ERROR_OUT_OF_MEMORY", "the GPU's memory is full",
     "a smaller batch, recomputation, sharded state; nvidia-smi shows who else is on it"},
    {"illegal memory access\nmisaligned address\nunspecified launch failure",
     "a kernel read or wrote where it must not: a fault of a program or of the GPU; the line that reports it is a later "
     "one",
     "CUDA_LAUNCH_BLOCKING=1 finds the call; compute-sanitizer the kernel"},
    {"device-side assert triggered", "a check in a kernel failed, most often an index: a label above the classes",
     "CUDA_LAUNCH_BLOCKING=1 finds the call; or run on the CPU, which names the index"},
    {"no kernel image is available", "the program was not built for this GPU's architecture",
     "a build of PyTorch for this GPU; torch.cuda.get_arch_list() lists what it has"},
    {"CUDA driver version is insufficient\nno CUDA-capable device\nno NVIDIA driver",
     "the driver of this node is older than the program's CUDA, or there is none",
     "nvidia-smi; a newer driver, an older build; in containers --gpus all"},
    {"uncorrectable ECC error\nuncorrectable NVLink error\nfallen off the bus\nXid (PCI\nXid * on *",
     "the GPU or its link failed: hardware", "take the node out; dmesg has the Xid"},
    {"after * went down\n; * went down",
     "a link of this machine went down while the job ran: an adapter, a port, an NVLink",
     "ip link, ibstat or nvidia-smi nvlink -s on that node: cable, switch port, driver; take the node out meanwhile"},
    {"waiting for clients\nwait timeout after * keys", "PyTorch's store: not all ranks came, or rank 0 is gone",
     "are all ranks started, with the same MASTER_ADDR and MASTER_PORT?"},
    /* --- the system */
    {"no memory\nout of memory\ndoes not fit in memory\ndoes not fit into memory\nno place in memory\n"
     "no room for\nCannot allocate memory",
     "this machine, this container or this limit (ulimit -v) has no memory left",
     "fewer or smaller workers and batches; a larger limit"},
    {"No space left on device\nDisk quota exceeded", "the disk or the quota of this folder is full", "make room"},
    {"Permission denied\nOperation not permitted\nRead-only file system", "this user may not do that there",
     "look at owner and mode of the path, or name another one"},
    {"Too many open files", "this process may not open more files", "ulimit -n 4096"},
    {"No such file or directory\nNot a directory", "a file or a folder is not there", "look at the path, on each node"},
    {"Input/output error\nStale file handle", "a disk or a file server failed",
     "look at it (dmesg); another try may succeed"},
    {"Connection refused\nConnection reset\nConnection timed out\nNo route to host\nNetwork is unreachable",
     "nobody listens there, or the network does not lead there", "is it up, the address right, the port open?"},
    {"is not JSON\nare no JSON\nit contains a zero byte\nit is empty\nmember '*' is not\nmember '*' is missing\n"
     "is larger than * bytes",
     "a file does not hold what is expected", "look at its path; write it anew"},
    {"is not a regular file\nno regular file",
     "the path leads to a named pipe, a device or a folder; its end may never come, so nothing is read from it",
     "save what it gives to a file, and name that"},
    {"is not a folder\ncannot make folder\ncannot write into folder\ncannot create\ncannot make the folder\ndoes not exist",
     "a path does not lead where it should", "look at the path, its owner and mode"},
    {"is not installed or cannot be loaded", "a library is missing that is opened when it is first needed",
     "install the package that the message names"},
    {"it has no default\nis above --scale", "an option has no usable value", "give a value"},
    {"can be read only once\ndid not end within * s", "a descriptor (fd:N) gives its secret once",
     "a file instead of fd:N"},
    {"event * is unknown\na node id has\na cause has at most\nrank order * is unknown\n"
     "has no derivative\ntakes position * of\nnobody reads tensor\nthe program is differentiated\nthe program has no\ntensor '*' would be\n"
     "two tensors are\ntwo parameters are\nparameter '*' is too\nafter the end of the program\nreads tensor *\n"
     "reads the rows of a group\nwindow does not fit\noutput channels\nadds * x\nhas * outputs\ntakes channels\n"
     "a group of * ranks\nhas no place in this plan\nof a plan that\nis not kept by this plan\nstreams beside\n"
     "adds a bias\noperation * of kind\nreads pictures, and\na vocabulary of\nparameters that are not there\nare read together with some\nfor what never comes\nthe slice holds\nbut the plan\n"
     "operations * to * of a program\npass * of a plan\nwithout memory for its boundary\nthe batch has no\n"
     "a batch that is mixed\nof the batch keeps\nof the batch has \n"
     "is not part of this plan\npieces of an arena\nis the root in a world\nis opened by rank\nis opened from a\n"
     "both must be positive\na message with rank\nhas one of * bytes\ncannot be reduced\ntoo large to be staged\n"
     "cannot resize the box\ncannot take * pixels\ncrops of scale\na loader needs\nsamples cannot be loaded\n"
     "an epoch has * steps\nis being closed\nloader_seek\nthe last epoch is over\nbatches are borrowed\n"
     "an order of * samples\nbatches of 0 samples\nof a world of\nfor gradients that\nSHA-256 failed\n"
     "a line was cut short\nposition is negative\nis left out",
     "a call that the program made itself was wrong, or its size impossible",
     "if the message does not name an option of yours: please report it, with the command line"},
    {"processor's engine\nproduct of matrices\ndescribe *\nchoose a device\nPCI bus id\n"
     "allocate memory\nwait for a stream\nask a stream\nrecord an event\nwait for an event\ntime between events\n"
     "fill memory\nend of capture\ninstantiate a graph\nupload a graph\nlaunch a graph\nlibjpeg: ",
     "a library failed; its own words follow", "for a GPU: trainer gpu-doctor; else please report it"},
    {"is not given: the last layer", "--model-parallel-size without --model-parallel-dim shares nothing",
     "--model-parallel-dim 1"},
    {"Resource temporarily unavailable\ncannot start a process\nno thread for\nthreads that start workers",
     "no process or thread could be started", "ulimit -u; the limit of the cgroup"},
    {"; given up in * s",
     "the rendezvous cannot be used yet; what stands before says why, and the time is what is left",
     "start it, or look at its address; --rdzv-conf join_timeout=30m waits longer"},
    /* --- everything else that is refused */
    {"*expected *", "a value has not the form, or not the range, that the sentence names after 'expected'",
     "write it so; PROGRAM --help and docs/reference/options.md have every option, --print-config says where a value "
     "comes from"},
    {"*did you mean '*", "nothing has that name; the nearest that there is stands in the sentence",
     "write it so; PROGRAM --help has all names"},
    {"*option *", "the command line is not understood before PROGRAM",
     "crun --help; PROGRAM's own options stand after it"},
    {"*is not one of *", "a value is none of those that there are", "one of those that the sentence names"},
    {"*is none of *", "a value is none of those that there are", "one of those that the sentence names"},
    {"*is neither *", "the value is no yes or no", "on or off"},
    {"*is not a *number*", "the value is no number", "digits; a time may have a unit: 30, 10m"},
    {"*: '*': *", "the value of this option is not understood", "the sentence says what is wrong with it; crun --help"},
    {NULL, NULL, NULL},
};
