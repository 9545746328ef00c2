/* What crun doctor knows of one machine. facts_read.c, facts_limits.c, facts_programs.c and facts_net.c look it up;
 * facts_json.c carries it from the host that looked to the one that judges. */
#ifndef CRUN_LAUNCHER_DOCTOR_FACTS_H
#define CRUN_LAUNCHER_DOCTOR_FACTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cJSON;
struct err;

#define FACTS_TEXT 512
#define FACTS_NICS_MAX 48
#define FACTS_HCAS_MAX 32

/* Texts; "" where there is none. */
#define FACTS_TEXTS(X)                                                                                                 \
    X(name)           /* host name */                                                                                  \
    X(kernel)         /* uname -r: "6.1.0-13-amd64" */                                                                 \
    X(version)        /* of this crun */                                                                               \
    X(foreign_crun)   /* path of a `crun` on PATH that is another program, where nothing of ours is */                 \
    X(foreign_says)   /* the first line of its --version */                                                            \
    X(python)         /* path of the Python that runs scripts */                                                       \
    X(python_from)    /* who named it: "PATH", "VIRTUAL_ENV" */                                                        \
    X(python_version) /* "3.11.2"; "": it does not run */                                                              \
    X(python_error)   /* why there is none, or why it does not run */                                                  \
    X(torch)          /* version of PyTorch there */                                                                   \
    X(foreign_module) /* file of a Python module `crun` that is another project's */                                   \
    X(token)          /* proof of the token by the nonce of this run, "": there is none */                             \
    X(token_error)    /* why the token there cannot be used */                                                         \
    X(folder_error)   /* why the folder of the job cannot be entered */                                                \
    X(tmp_error)      /* why nothing can be written to TMPDIR */                                                       \
    X(memory_group)   /* cgroup whose limit is the tightest */                                                         \
    X(tasks_group)                                                                                                     \
    X(oom_group) /* cgroup with memory.oom.group */                                                                    \
    X(gpu)       /* "NVIDIA H100 80GB HBM3", of the first one */                                                       \
    X(gpu_error) /* why the driver's library cannot be used */                                                         \
    X(own_name)  /* why this machine's own name is not known to it */                                                  \
    X(own_addr)  /* the loopback address that its own name stands for, where Gloo would listen there */

/* Numbers; -1: not known, or no limit. */
#define FACTS_NUMBERS(X)                                                                                               \
    X(pidfd)         /* 1: pidfd_open(2) works */                                                                      \
    X(proc)          /* 1: /proc is mounted */                                                                         \
    X(files)         /* ulimit -n */                                                                                   \
    X(processes)     /* ulimit -u; -1 for root, who has none */                                                        \
    X(locked)        /* ulimit -l, bytes */                                                                            \
    X(address_space) /* ulimit -v, bytes */                                                                            \
    X(memory)        /* bytes of the tightest cgroup */                                                                \
    X(tasks)         /* processes and threads of the tightest cgroup (pids.max) */                                     \
    X(cores)         /* that may be used */                                                                            \
    X(shm)           /* bytes of /dev/shm */                                                                           \
    X(pci_gpus)      /* NVIDIA GPUs on the PCI bus */                                                                  \
    X(gpus)          /* that the driver names */

struct facts_nic {
    char name[32];
    bool up;      /* and running: it has a carrier */
    bool compare; /* its name was not drawn by an engine of containers: the same name is the same network elsewhere */
    int mtu;
};

struct facts_hca { /* a port of an RDMA adapter */
    char name[64]; /* "mlx5_0:1" */
    bool active;
};

struct facts {
#define X(name) char name[FACTS_TEXT];
    FACTS_TEXTS(X)
#undef X
#define X(name) int64_t name;
    FACTS_NUMBERS(X)
#undef X
    struct facts_nic nics[FACTS_NICS_MAX];
    int n_nics;
    struct facts_hca hcas[FACTS_HCAS_MAX];
    int n_hcas;
};

/* What is asked of the machine that looks. */
struct facts_ask {
    const char *nonce;      /* that the proof of the token is for */
    const char *token_file; /* NULL: CRUN_TOKEN_FILE, else ~/.config/crun/token; it is not made */
    const char *folder;     /* NULL: none */
};

/* Look at this machine. Runs its Python, and a `crun` that is another program, for some seconds at most each. */
void facts_read(const struct facts_ask *ask, struct facts *ret);

void facts_read_limits(struct facts *f);   /* facts_limits.c: ulimit, cgroups */
void facts_read_programs(struct facts *f); /* facts_programs.c: Python, crun on PATH */
void facts_read_net(struct facts *f);      /* facts_net.c: interfaces, RDMA adapters */

/* The first line that a program prints on either stream, within timeout_ms, after which it is killed. -ETIMEDOUT;
 * -ENODATA: it printed nothing; other -errno: it cannot be started. */
int facts_run(char *const argv[], char *out, size_t cap, int timeout_ms);

/* facts_json.c. To be freed with cJSON_Delete(); NULL: no memory. */
struct cJSON *facts_to_json(const struct facts *f);
/* What is missing stays "" or -1; texts are cut where they do not fit. */
void facts_from_json(const struct cJSON *o, struct facts *ret);

#endif
