/* Makes findings from what hosts report of themselves and their connections (judge.h). */
#include "launcher/tools/doctor/judge.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILES_LEAST 1024
#define PROCESSES_LEAST 1024
#define WORKER_BYTES ((int64_t)1 << 30) /* Python and PyTorch alone take several 100 MiB */
#define WORKER_TASKS 128                /* threads of one: OpenMP, loaders, CUDA, NCCL */
#define SHM_LEAST ((int64_t)256 << 20)  /* a container's 64 MiB end PyTorch's loaders */
#define MIB (1024.0 * 1024)

#define ADD(id, ...) findings_add(out, id, h->host, __VA_ARGS__)

/* --- one host */

static bool older_than(const char *release, int major, int minor)
{
    char *end;
    const long a = strtol(release, &end, 10), b = *end == '.' ? strtol(end + 1, NULL, 10) : 0;
    return end != release && (a < major || (a == major && b < minor));
}

static void judge_kernel(const struct judged *h, struct findings *out)
{
    const struct facts *f = h->facts;
    if (older_than(f->kernel, 5, 3))
        ADD(FINDING_KERNEL, "its kernel is Linux %s: crun needs 5.3 or newer", f->kernel);
    else if (!f->pidfd)
        ADD(FINDING_KERNEL, "pidfd_open(2) is refused there, although the kernel is Linux %s", f->kernel);
    if (!f->proc)
        ADD(FINDING_PROC, "there is no /proc: what workers leave behind is found slowly");
}

static bool below(int64_t have, int64_t need)
{
    return have >= 0 && have < need;
}

static void judge_limits(const struct judged *h, struct findings *out)
{
    const struct facts *f = h->facts;
    const int64_t memory = h->workers * WORKER_BYTES, tasks = (int64_t)h->workers * WORKER_TASKS;
    if (below(f->files, FILES_LEAST))
        ADD(FINDING_FILES, "a process may open only %lld files: expected %d or more", (long long)f->files, FILES_LEAST);
    if (below(f->processes, PROCESSES_LEAST))
        ADD(FINDING_PROCESSES, "the user may have only %lld processes: expected %d or more", (long long)f->processes,
            PROCESSES_LEAST);
    if (f->n_hcas > 0 && f->locked >= 0)
        ADD(FINDING_LOCKED, "a process may lock only %lld KiB of memory: its RDMA adapter %s needs more",
            (long long)f->locked / 1024, f->hcas[0].name);
    if (f->address_space >= 0)
        ADD(FINDING_ADDRESS_SPACE, "the address space of a process is limited to %.0f MiB",
            (double)f->address_space / MIB);
    if (below(f->memory, memory))
        ADD(FINDING_MEMORY, "its cgroup %s may use only %.0f MiB of memory: expected %.0f for %d worker%s",
            f->memory_group, (double)f->memory / MIB, (double)memory / MIB, h->workers, h->workers == 1 ? "" : "s");
    if (below(f->tasks, tasks))
        ADD(FINDING_TASKS, "its cgroup %s may have only %lld processes and threads: expected %lld for %d worker%s",
            f->tasks_group, (long long)f->tasks, (long long)tasks, h->workers, h->workers == 1 ? "" : "s");
    if (below(f->cores, h->workers))
        ADD(FINDING_CORES, "%lld CPUs may be used for %d workers", (long long)f->cores, h->workers);
    if (below(f->shm, SHM_LEAST))
        ADD(FINDING_SHM, "/dev/shm has only %.0f MiB: PyTorch's data loaders and NCCL need more", (double)f->shm / MIB);
    if (f->oom_group[0])
        ADD(FINDING_OOM_GROUP,
            "memory.oom.group is set in %s: a worker that is killed for want of memory takes crun along", f->oom_group);
    if (f->tmp_error[0])
        ADD(FINDING_TMP, "nothing can be written to the folder of temporary files: %s", f->tmp_error);
}

static void judge_programs(const struct judged *h, struct findings *out)
{
    const struct facts *f = h->facts;
    if (f->python[0] && f->python_error[0])
        ADD(FINDING_PYTHON, "its Python %s (%s) does not run: %s", f->python, f->python_from, f->python_error);
    else if (strcmp(f->python_from, "PYTHON_EXEC") == 0 && f->python_error[0])
        ADD(FINDING_PYTHON, "%s", f->python_error);
    if (f->foreign_crun[0])
        ADD(FINDING_FOREIGN_CRUN, "crun on PATH is %s, another program ('%s')", f->foreign_crun, f->foreign_says);
    if (f->foreign_module[0])
        ADD(FINDING_FOREIGN_MODULE, "`import crun` of its Python %s gets another project's %s", f->python,
            f->foreign_module);
    if (f->token_error[0])
        ADD(FINDING_TOKEN, "its token cannot be used: %s", f->token_error);
    if (f->folder_error[0])
        ADD(FINDING_FOLDER, "the folder that crun is started in cannot be entered there: %s", f->folder_error);
}

static void judge_devices(const struct judged *h, const char *iface, struct findings *out)
{
    const struct facts *f = h->facts;
    const struct facts_nic *named = NULL;
    if (f->gpu_error[0])
        ADD(FINDING_GPU, "the driver's library cannot be used: %s", f->gpu_error);
    if (f->gpus < f->pci_gpus)
        ADD(FINDING_GPU, "%lld NVIDIA GPU%s on its PCI bus, but the driver names %lld", (long long)f->pci_gpus,
            f->pci_gpus == 1 ? " is" : "s are", (long long)f->gpus);
    for (int i = 0; iface && i < f->n_nics; i++)
        if (strcmp(f->nics[i].name, iface) == 0)
            named = &f->nics[i];
    if (iface && !named)
        ADD(FINDING_NIC, "there is no network interface %s", iface);
    else if (iface && !named->up)
        ADD(FINDING_NIC, "its network interface %s is down", iface);
}

void judge_host(const struct judged *h, const char *iface, struct findings *out)
{
    judge_kernel(h, out);
    judge_limits(h, out);
    judge_programs(h, out);
    judge_devices(h, iface, out);
}

/* --- against the first host */

static void compare_programs(const struct judged *h, const struct judged *first, struct findings *out)
{
    const struct facts *f = h->facts, *o = first->facts;
    if (strcmp(f->version, o->version) != 0)
        ADD(FINDING_VERSION, "its crun is of version %s, that of %s %s", f->version, first->host, o->version);
    if (!f->python[0] != !o->python[0])
        ADD(FINDING_PYTHON, "%s is found there, but %s on %s", f->python[0] ? f->python : "no Python",
            o->python[0] ? o->python : "none", first->host);
    else if (strcmp(f->python_version, o->python_version) != 0 && f->python_version[0] && o->python_version[0])
        ADD(FINDING_PYTHON, "its Python is %s (%s, by %s), that of %s %s (%s, by %s)", f->python_version, f->python,
            f->python_from, first->host, o->python_version, o->python, o->python_from);
    if (strcmp(f->torch, o->torch) != 0)
        ADD(FINDING_TORCH, "its Python %s has %s%s, that of %s %s%s", f->python,
            f->torch[0] ? "PyTorch " : "no PyTorch", f->torch, first->host, o->torch[0] ? "PyTorch " : "no PyTorch",
            o->torch);
    if (!f->token_error[0] && !o->token_error[0] && strcmp(f->token, o->token) != 0)
        ADD(FINDING_TOKEN,
            f->token[0] && o->token[0] ? "its token is another one than that of %s: they would refuse each other"
            : f->token[0]              ? "it has a token, and %s has none"
                                       : "it has no token, and %s has one",
            first->host);
}

static void compare_clock(const struct judged *h, const struct judged *first, struct findings *out)
{
    const int64_t ahead = h->ahead_us - first->ahead_us, size = ahead < 0 ? -ahead : ahead;
    if (h->within_us < 0 || first->within_us < 0 || size - h->within_us - first->within_us < JUDGE_CLOCK_US)
        return;
    ADD(FINDING_CLOCK, "its clock is %.1f s %s that of %s", (double)size / 1e6, ahead < 0 ? "behind" : "ahead of",
        first->host);
}

static void compare_gpus(const struct judged *h, const struct judged *first, struct findings *out)
{
    const struct facts *f = h->facts, *o = first->facts;
    if (f->gpus != o->gpus)
        ADD(FINDING_GPU, "its driver names %lld GPU%s, that of %s %lld", (long long)f->gpus, f->gpus == 1 ? "" : "s",
            first->host, (long long)o->gpus);
    else if (strcmp(f->gpu, o->gpu) != 0)
        ADD(FINDING_GPU, "its GPUs are %s, those of %s %s", f->gpu, first->host, o->gpu);
}

static const struct facts_nic *find_nic(const struct facts *f, const char *name)
{
    for (int i = 0; i < f->n_nics; i++)
        if (strcmp(f->nics[i].name, name) == 0)
            return &f->nics[i];
    return NULL;
}

/* Report interfaces that are down on h, and up on another host. */
static void compare_nics(const struct judged *h, const struct judged *v, int n, struct findings *out)
{
    for (int i = 0; i < h->facts->n_nics; i++) {
        const struct facts_nic *own = &h->facts->nics[i];
        for (int k = 0; k < n && own->compare && !own->up; k++) {
            const struct facts_nic *other = find_nic(v[k].facts, own->name);
            if (!other || !other->up)
                continue;
            ADD(FINDING_NIC, "its network interface %s is down, that of %s is up", own->name, v[k].host);
            break;
        }
    }
    bool active = false;
    for (int k = 0; k < n; k++)
        for (int i = 0; i < v[k].facts->n_hcas; i++)
            active = active || v[k].facts->hcas[i].active;
    for (int i = 0; i < h->facts->n_hcas && active; i++)
        if (!h->facts->hcas[i].active)
            ADD(FINDING_NIC, "port %s of its RDMA adapter is not active", h->facts->hcas[i].name);
}

void judge_hosts(const struct judged *v, int n, struct findings *out)
{
    for (int i = 0; i < n; i++) {
        const struct judged *h = &v[i];
        if (n > 1 && h->facts->own_name[0])
            ADD(FINDING_NAME, "its own name is not known to it: %s", h->facts->own_name);
        if (n > 1 && h->facts->torch[0] && h->facts->own_addr[0])
            ADD(FINDING_OWN_ADDRESS, "its own name %s stands for %s, where PyTorch's Gloo would wait for other hosts",
                h->facts->name, h->facts->own_addr);
        compare_nics(h, v, n, out);
        if (i == 0)
            continue;
        compare_programs(h, &v[0], out);
        compare_clock(h, &v[0], out);
        compare_gpus(h, &v[0], out);
    }
}

/* --- connections */

void judge_link(const char *from, const char *to, const struct probe *p, const struct probe *back, struct findings *out)
{
    switch (p->state) {
    case PROBE_UNRESOLVED:
        findings_add(out, FINDING_NAME, from, "it does not know the name of %s: %s", to, p->text);
        return;
    case PROBE_CLOSED:
        findings_add(out, FINDING_CLOSED, from, "it cannot connect to %s: %s", to, p->text);
        return;
    case PROBE_OTHER:
        findings_add(out, FINDING_CLOSED, from, "its connection to %s leads to somebody else: %s", to, p->text);
        return;
    case PROBE_STUCK:
        if (p->passes > 0)
            findings_add(
                out, FINDING_MTU, from,
                "large packets to or from %s are lost: the MTU of %s is %d, but only packets of up to %d bytes "
                "get through",
                to, p->iface, p->mtu, p->passes);
        else
            findings_add(out, FINDING_MTU, from, "only small packets to or from %s get through (MTU of %s: %d)", to,
                         p->iface, p->mtu);
        return;
    case PROBE_OK:
        if (back && back->state == PROBE_OK && p->mtu > 0 && p->mtu < back->mtu)
            findings_add(out, FINDING_MTU, from, "the MTU of its %s is %d, that of %s's %s is %d", p->iface, p->mtu, to,
                         back->iface, back->mtu);
        return;
    }
}
