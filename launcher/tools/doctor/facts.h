/* What crun doctor knows of one machine. facts_read.c, facts_limits.c, facts_programs.c and facts_net.c collect it;
 * facts_json.c transfers it from the examined host to the judging one. */
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
    X(foreign_crun)   /* path of another program called `crun` on PATH, if ours is not there */                        \
    X(foreign_says)   /* the first line of its --version */                                                            \
    X(python)         /* path of the Python that runs scripts */                                                       \
    X(python_from)    /* who named it: "PATH", "VIRTUAL_ENV" */                                                        \
    X(python_version) /* "3.11.2"; "": it does not run */                                                              \
    X(python_error)   /* why there is no Python, or why it does not run */                                             \
    X(torch)          /* version of PyTorch there */                                                                   \
    X(foreign_module) /* file of another project's Python module called `crun` */                                      \
    X(token)          /* proof that the host has the token, for this run's nonce; "": it has none */                   \
    X(token_error)    /* why the token there cannot be used */                                                         \
    X(folder_error)   /* why the job's folder cannot be entered */                                                     \
    X(tmp_error)      /* why nothing can be written to TMPDIR */                                                       \
    X(memory_group)   /* cgroup whose limit is the tightest */                                                         \
    X(tasks_group)                                                                                                     \
    X(oom_group) /* cgroup with memory.oom.group */                                                                    \
    X(gpu)       /* name of the first GPU: "NVIDIA H100 80GB HBM3" */                                                  \
    X(gpu_error) /* why the driver's library cannot be used */                                                         \
    X(own_name)  /* why this machine cannot resolve its own name */                                                    \
    X(own_addr)  /* the loopback address to which its own name resolves, if Gloo would listen there */

/* Numbers; -1: not known, or no limit. */
#define FACTS_NUMBERS(X)                                                                                               \
    X(pidfd)         /* 1: pidfd_open(2) works */                                                                      \
    X(proc)          /* 1: /proc is mounted */                                                                         \
    X(files)         /* ulimit -n */                                                                                   \
    X(processes)     /* ulimit -u; -1 for root, who has none */                                                        \
    X(locked)        /* ulimit -l, bytes */                                                                            \
    X(address_space) /* ulimit -v, bytes */                                                                            \
    X(memory)        /* bytes of the tightest cgroup */                                                                \
    X(tasks)         /* processes and threads allowed by the tightest cgroup (pids.max) */                             \
    X(cores)         /* that may be used */                                                                            \
    X(shm)           /* bytes of /dev/shm */                                                                           \
    X(pci_gpus)      /* NVIDIA GPUs on the PCI bus */                                                                  \
    X(gpus)          /* that the driver names */

struct facts_nic {
    char name[32];
    bool up; /* and running: it has a carrier */
    /* its name was not made up by a container engine: the same name on other hosts means the same network */
    bool compare;
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

/* What the examined machine is asked for. */
struct facts_ask {
    const char *nonce;      /* nonce for the proof of the token */
    const char *token_file; /* NULL: CRUN_TOKEN_FILE, else ~/.config/crun/token, which is not made */
    const char *folder;     /* NULL: none */
};

/* Examine this machine. Runs its Python, and another program called `crun`, for some seconds each at most. */
void facts_read(const struct facts_ask *ask, struct facts *ret);

void facts_read_limits(struct facts *f);   /* facts_limits.c: ulimit, cgroups */
void facts_read_programs(struct facts *f); /* facts_programs.c: Python, crun on PATH */
void facts_read_net(struct facts *f);      /* facts_net.c: interfaces, RDMA adapters */

/* Run a program, and get the first line that it prints on either stream within timeout_ms; then it is killed.
 * -ETIMEDOUT; -ENODATA: it printed nothing; other -errno: it cannot be started. */
int facts_run(char *const argv[], char *out, size_t cap, int timeout_ms);

/* facts_json.c. Free with cJSON_Delete(); NULL: no memory. */
struct cJSON *facts_to_json(const struct facts *f);
/* Missing members stay "" or -1; texts that do not fit are cut. */
void facts_from_json(const struct cJSON *o, struct facts *ret);

#endif
