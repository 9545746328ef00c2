/* `crun topo`: prints GPUs, adapters and cores, and how they are connected (topo.h). */
#include "launcher/tools/topo/topo.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "common/job/exitcode.h"
#include "launcher/place/cpus.h"
#include "launcher/place/topology.h"
#include "launcher/tools/topo/pci.h"
#include "launcher/tools/topo/topo_devices.h"

static const struct arg_spec specs[] = {ARG_END};

const struct arg_program topo_program = {
    .name = "crun topo",
    .usage = "",
    .summary =
        "Shows how this machine's GPUs and network adapters hang together, as `nvidia-smi topo -m` does, and its NUMA "
        "nodes and cores.",
    .specs = specs,
    .operands = ARG_NO_OPERANDS,
};

/* --- the matrix */

static void print_matrix(const struct topo_devices *d, FILE *out)
{
    char text[256];
    for (int i = 0; i < d->n; i++)
        fprintf(out, "\t%s", d->v[i].label);
    fputs("\tCPU Affinity\tNUMA Affinity\n", out);
    for (int i = 0; i < d->n; i++) {
        fputs(d->v[i].label, out);
        for (int k = 0; k < d->n; k++)
            fprintf(out, i == k ? "\t %s " : "\t%s", topo_devices_relation(d, i, k, text, sizeof text));
        fprintf(out, "\t%s", d->v[i].gpu ? topo_devices_cpus(&d->v[i], text, sizeof text) : "");
        if (d->v[i].gpu && d->v[i].numa_node >= 0)
            fprintf(out, "\t%d\n", d->v[i].numa_node);
        else
            fputs(d->v[i].gpu ? "\tN/A\n" : "\t\n", out);
    }
}

static void print_legend(FILE *out)
{
    fputs("\nLegend:\n\n  X    = Self\n", out);
#define X(id, name, text) fprintf(out, "  %-4s = %s\n", name, text);
    PCI_DISTANCES(X)
#undef X
    fputs("  NV#  = Connection traversing a bonded set of # NVLinks\n\n", out);
}

static void print_devices(FILE *out)
{
    static struct topo_devices d;
    struct err e = {0};
    char sys[TOPO_PATH_MAX];
    snprintf(sys, sizeof sys, "%s/sys", machine_root());
    topo_devices_find(&d, sys);
    if (d.n > 0) {
        print_matrix(&d, out);
        print_legend(out);
        for (int i = 0; i < d.n; i++)
            fprintf(out, "  %s: %s%s%s\n", d.v[i].label, d.v[i].name, d.v[i].gpu ? ", " : "",
                    d.v[i].gpu ? d.v[i].gpu->pci : "");
        fputc('\n', out);
    }
    if (d.n_gpus == 0)
        fprintf(out, "No GPU: %s\n\n", nvml_lib(&e) ? "the NVIDIA driver names none" : e.text);
}

/* --- cores */

static double memory_gib(int node)
{
    char path[64], line[128];
    double kb = 0;
    snprintf(path, sizeof path, "/sys/devices/system/node/node%d/meminfo", node);
    FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof line, f)) /* "Node 0 MemTotal:  24574520 kB" */
        if (sscanf(line, "Node %*d MemTotal: %lf", &kb) == 1)
            break;
    if (f)
        fclose(f);
    return kb / (1024 * 1024);
}

/* Print one line for a NUMA node; `first`: index of its first core. */
static void print_node(const struct topology *t, int first, const struct cpus *allowed, FILE *out)
{
    const struct topology_core *c = &t->cores[first];
    struct cpus all = {0}, usable = {0};
    char text[256];
    int cores = 0, complexes = 0;
    for (int i = first; i < t->n; i++) {
        if (t->cores[i].node != c->node)
            continue;
        int k = first;
        while (t->cores[k].node != c->node || t->cores[k].complex != t->cores[i].complex)
            k++;
        complexes += k == i;
        cores++;
        cpus_add_all(&all, &t->cores[i].cpus);
    }
    for (int i = 0; i < CPUS_MAX; i++)
        if (cpus_has(&all, i) && cpus_has(allowed, i))
            cpus_add(&usable, i);
    fprintf(out, "NUMA node %d: socket %d, %d core%s", c->node, c->socket, cores, cores == 1 ? "" : "s");
    if (c->complex >= 0)
        fprintf(out, " in %d group%s with one largest cache", complexes, complexes == 1 ? "" : "s");
    fprintf(out, ", CPUs %s", cpus_text(&all, text, sizeof text));
    if (!cpus_equal(&all, &usable))
        fprintf(out, " (to use: %s)", cpus_count(&usable) ? cpus_text(&usable, text, sizeof text) : "none");
    if (memory_gib(c->node) > 0)
        fprintf(out, ", memory %.1f GiB", memory_gib(c->node));
    fputc('\n', out);
}

static int print_cores(FILE *out, struct err *e)
{
    struct topology t;
    struct cpus allowed;
    int rc = cpus_allowed(&allowed);
    if (rc < 0)
        return err_errno(e, -rc, "the CPUs that crun may run on");
    TRY(topology_read(&t, NULL, NULL, e));
    for (int i = 0; i < t.n; i++) {
        int k = 0;
        while (t.cores[k].node != t.cores[i].node)
            k++;
        if (k == i)
            print_node(&t, i, &allowed, out);
    }
    topology_free(&t);
    return 0;
}

static int complain(const struct err *e, int code)
{
    fflush(stdout);
    fprintf(stderr, "crun topo: %s\n", e->text);
    return code;
}

int topo_main(int argc, char **argv)
{
    struct arg_result r;
    struct err e;
    char none = 0;
    if (args_parse(&topo_program, argc, argv, &none, &r, &e) < 0)
        return complain(&e, EXIT_USAGE_ERROR);
    if (args_answer(&topo_program, "crun " CRUN_VERSION, &none, &r, stdout))
        return EXIT_OK;
    print_devices(stdout);
    if (print_cores(stdout, &e) < 0)
        return complain(&e, EXIT_UNAVAILABLE);
    if (fflush(stdout) == 0)
        return EXIT_OK;
    err_errno(&e, errno, "the output cannot be written");
    return complain(&e, EXIT_CANT_CREATE);
}
