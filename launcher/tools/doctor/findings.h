/* A finding of crun doctor: a sentence about a host, and its remedy. Pure. */
#ifndef CRUN_LAUNCHER_DOCTOR_FINDINGS_H
#define CRUN_LAUNCHER_DOCTOR_FINDINGS_H

#include <stddef.h>

/* id, name in --json, remedy. */
#define FINDINGS(X)                                                                                                    \
    X(FINDING_HOST, "host", "try the same by hand: ssh HOST true; --rsh and --remote-crun name other ways")            \
    X(FINDING_KERNEL, "kernel", "Linux 5.3 or newer, without a filter that refuses pidfd_open(2)")                     \
    X(FINDING_PROC, "proc", "mount /proc in this container")                                                           \
    X(FINDING_VERSION, "version", "install the same version on all hosts, or name it with --remote-crun")              \
    X(FINDING_FOREIGN_CRUN, "foreign-crun",                                                                            \
      "call it by its path or as crun-launcher, or put its folder first in PATH")                                      \
    X(FINDING_FOREIGN_MODULE, "foreign-module",                                                                        \
      "pip uninstall crun, then pip install --force-reinstall crun-launcher")                                          \
    X(FINDING_PYTHON, "python", "PYTHON_EXEC=/path/to/python on every host, or crun installed into the environment")   \
    X(FINDING_TORCH, "torch", "install the same version of PyTorch into the Python of every host")                     \
    X(FINDING_TOKEN, "token",                                                                                          \
      "copy one token file to all hosts (mode 600), or --token-file; crun -H needs none: it sends its own")            \
    X(FINDING_CLOCK, "clock", "let chrony or systemd-timesyncd set the clocks of all hosts")                           \
    X(FINDING_FILES, "files", "ulimit -n 65536; for good: /etc/security/limits.conf, or LimitNOFILE= of the unit")     \
    X(FINDING_PROCESSES, "processes",                                                                                  \
      "ulimit -u 65536; for good: /etc/security/limits.conf, or TasksMax= of the unit")                                \
    X(FINDING_LOCKED, "locked-memory",                                                                                 \
      "ulimit -l unlimited, for the RDMA adapters; LimitMEMLOCK=infinity of the unit")                                 \
    X(FINDING_ADDRESS_SPACE, "address-space", "ulimit -v unlimited: GPU programs reserve far more than they use")      \
    X(FINDING_MEMORY, "memory", "a larger limit of the container or the job, or fewer workers")                        \
    X(FINDING_TASKS, "tasks", "a larger pids limit of the container, or TasksMax= of the unit")                        \
    X(FINDING_CORES, "cores", "more CPUs for this job, or fewer workers")                                              \
    X(FINDING_SHM, "shm", "docker run --shm-size=8g; Kubernetes: an emptyDir with medium: Memory at /dev/shm")         \
    X(FINDING_TMP, "tmp", "make room there, or TMPDIR=/a/folder/to/write")                                             \
    X(FINDING_OOM_GROUP, "oom-group", "Kubernetes: singleProcessOOMKill: true for the kubelet")                        \
    X(FINDING_GPU, "gpu", "nvidia-smi says more; the driver and its library must be of one version")                   \
    X(FINDING_NIC, "nic", "ip link set NAME up, or mend the cable or switch; --iface names another one")               \
    X(FINDING_NAME, "name", "a line in /etc/hosts of that host, or in DNS; or give addresses instead of names")        \
    X(FINDING_OWN_ADDRESS, "own-address",                                                                              \
      "its own address for that name in its /etc/hosts; or GLOO_SOCKET_IFNAME=eth0 or the like on every host")         \
    X(FINDING_CLOSED, "closed",                                                                                        \
      "open the ports between the hosts of a job: crun and workers use ports the kernel picks")                        \
    X(FINDING_MTU, "mtu", "one MTU on all interfaces and switches between them: ip link set NAME mtu N")               \
    X(FINDING_FOLDER, "folder", "make the folder there, or start crun in one that every host has")                     \
    X(FINDING_SHARED, "shared", "mount the same file system there on every host")                                      \
    X(FINDING_RENDEZVOUS, "rendezvous", "start rendezvousd there, or name where it listens; is its port open?")        \
    X(FINDING_REFUSED, "refused", "one token for both: add it to rendezvousd's --token-file, or name it here")         \
    X(FINDING_MISSING, "missing", "start crun there with the same --rdzv-endpoint and --rdzv-id")

enum finding_id {
#define X(id, name, remedy) id,
    FINDINGS(X)
#undef X
};

struct finding {
    enum finding_id id;
    char *text; /* "node2: its clock is 3.2 s ahead of node1's" */
};

struct findings {
    struct finding *v;
    size_t n, cap;
};

/* Ends the process if there is no memory: there is nothing to undo. */
void findings_add(struct findings *f, enum finding_id id, const char *host, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
const char *finding_name(enum finding_id id);
const char *finding_remedy(enum finding_id id);
void findings_free(struct findings *f);

#endif
