/* Assigns cores to workers, and binds a worker to them (binding.h). */
#include "launcher/place/binding.h"

#include <errno.h>
#include <linux/mempolicy.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/base/err.h"
#include "launcher/place/topology.h"

/* The workers of one NUMA node. */
struct share {
    int cores;   /* of the node */
    int workers; /* that belong to it */
    int number;  /* which of them this one is */
};

static bool has_node(const struct topology *t, int node)
{
    for (int i = 0; i < t->n; i++)
        if (t->cores[i].node == node)
            return true;
    return false;
}

static int home_node(const struct topology *t, int workers, const int *near, int worker)
{
    if (near && near[worker] >= 0 && has_node(t, near[worker])) /* our cpuset may lie elsewhere */
        return near[worker];
    return t->cores[((2L * worker + 1) * t->n - 1) / (2L * workers)].node; /* the middle of its even share */
}

static struct share share_of(const struct topology *t, const int *home, int workers, int worker)
{
    struct share s = {0};
    for (int i = 0; i < t->n; i++)
        s.cores += t->cores[i].node == home[worker];
    for (int i = 0; i < workers; i++)
        if (home[i] == home[worker]) {
            s.workers++;
            s.number += i < worker;
        }
    return s;
}

static int socket_of(const struct topology *t, int node)
{
    for (int i = 0; i < t->n; i++)
        if (t->cores[i].node == node)
            return t->cores[i].socket;
    return -1;
}

static void take_exclusive(const struct topology *t, int node, const struct share *s, struct binding *b)
{
    const int each = s->cores / s->workers, more = s->cores % s->workers;
    const int first = s->number * each + (s->number < more ? s->number : more);
    const int end = first + each + (s->number < more);
    for (int i = 0, at = 0; i < t->n; i++)
        if (t->cores[i].node == node) {
            if (at >= first && at < end)
                cpus_add_all(&b->cpus, &t->cores[i].cpus);
            at++;
        }
}

static int width(const struct topology *t, int node, int complex)
{
    int n = 0;
    for (int i = 0; i < t->n; i++)
        if (t->cores[i].node == node && t->cores[i].complex == complex)
            n += cpus_count(&t->cores[i].cpus);
    return n;
}

/* List the core complexes of the node from the widest to the narrowest; returns their number. */
static int list_complexes(const struct topology *t, int node, int *ret)
{
    int n = 0;
    for (int i = 0; i < t->n; i++) {
        const int complex = t->cores[i].complex;
        bool known = t->cores[i].node != node;
        for (int k = 0; k < n && !known; k++)
            known = ret[k] == complex;
        if (known)
            continue;
        int at = n++;
        for (; at > 0 && width(t, node, ret[at - 1]) < width(t, node, complex); at--)
            ret[at] = ret[at - 1];
        ret[at] = complex;
    }
    return n;
}

static void take_complex(const struct topology *t, int node, int complex, struct binding *b)
{
    for (int i = 0; i < t->n; i++)
        if (t->cores[i].node == node && t->cores[i].complex == complex)
            cpus_add_all(&b->cpus, &t->cores[i].cpus);
}

static void take_socket(const struct topology *t, int socket, struct binding *b)
{
    for (int i = 0; i < t->n; i++)
        if (t->cores[i].socket == socket) {
            if (t->cores[i].node != b->node)
                b->node = -1;
            cpus_add_all(&b->cpus, &t->cores[i].cpus);
        }
}

static int assign_one(const struct topology *t, enum binding_mode mode, int workers, const int *home, int worker,
                      int *complexes, struct binding *b, struct err *e)
{
    const int node = home[worker];
    const struct share s = share_of(t, home, workers, worker);
    *b = (struct binding){.node = node};
    switch (mode) {
    case BINDING_SOCKET:
        take_socket(t, socket_of(t, node), b);
        return 0;
    case BINDING_CORE_COMPLEX:
        take_complex(t, node, complexes[s.number % list_complexes(t, node, complexes)], b);
        return 0;
    case BINDING_EXCLUSIVE:
        if (s.workers > s.cores)
            return err_set(e, ERR_USAGE,
                           "--numa-binding exclusive: %d workers belong to NUMA node %d, which has %d core%s to use: "
                           "expected at most one worker for each",
                           s.workers, node, s.cores, s.cores == 1 ? "" : "s");
        take_exclusive(t, node, &s, b);
        return 0;
    default:
        take_exclusive(t, node, &(struct share){.cores = s.cores, .workers = 1}, b);
        return 0;
    }
}

int binding_assign(const struct topology *t, enum binding_mode mode, int workers, const int *near, struct binding *ret,
                   struct err *e)
{
    int *home = calloc((size_t)workers + (size_t)t->n, sizeof *home);
    if (!home)
        return err_errno(e, ENOMEM, "binding");
    int rc = 0;
    for (int i = 0; i < workers; i++)
        home[i] = home_node(t, workers, near, i);
    for (int i = 0; i < workers && rc == 0; i++)
        rc = assign_one(t, mode, workers, home, i, home + workers, &ret[i], e);
    free(home);
    return rc;
}

int binding_apply(const struct binding *b)
{
    unsigned long nodes[1024 / (8 * sizeof(long))] = {0};
    const int bits = 8 * (int)sizeof *nodes;
    if (syscall(SYS_sched_setaffinity, 0, sizeof b->cpus, &b->cpus) < 0)
        return -errno;
    if (b->node >= 0 && b->node < 1024) {
        nodes[b->node / bits] = 1UL << (b->node % bits);
        syscall(SYS_set_mempolicy, MPOL_PREFERRED, nodes, 1024);
    }
    return 0;
}
