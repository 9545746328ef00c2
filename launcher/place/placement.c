/* Plans each worker's place: its cores, its GPU's NUMA node, its number of threads (placement.h). */
#include "launcher/place/placement.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/err.h"
#include "launcher/place/cores.h"
#include "launcher/place/cpus.h"
#include "launcher/place/gpus.h"
#include "launcher/place/topology.h"

static int bind_all(struct placement *p, enum binding_mode mode, const struct cpus *allowed, struct err *e)
{
    struct gpu gpus[GPUS_MAX];
    struct topology t;
    int *near = NULL, rc = 0;
    const int n = gpus_usable(gpus);
    TRY(topology_read(&t, NULL, allowed, e));
    p->bindings = calloc((size_t)p->workers, sizeof *p->bindings);
    if (n > 0)
        near = calloc((size_t)p->workers, sizeof *near);
    if (!p->bindings || (n > 0 && !near))
        rc = err_errno(e, ENOMEM, "binding");
    for (int i = 0; near && i < p->workers; i++)
        near[i] = gpus[i % n].numa_node;
    if (rc == 0)
        rc = binding_assign(&t, mode, p->workers, near, p->bindings, e);
    free(near);
    topology_free(&t);
    return rc;
}

int placement_plan(struct placement *ret, enum binding_mode mode, int workers, const struct cgroup_tables *t,
                   struct err *e)
{
    struct cpus allowed = {0};
    int rc = cpus_allowed(&allowed);
    if (rc < 0)
        return err_errno(e, -rc, "the CPUs that crun may run on");
    *ret = (struct placement){.workers = workers, .cores = cores_usable(t)};
    ret->limited = ret->cores < cpus_count(&allowed);
    if (mode != BINDING_OFF)
        rc = bind_all(ret, mode, &allowed, e);
    if (rc < 0) {
        placement_free(ret);
        return rc == ERR_USAGE ? rc : err_wrap(e, "--numa-binding");
    }
    return 0;
}

void placement_free(struct placement *p)
{
    free(p->bindings);
    p->bindings = NULL;
}

int placement_threads(const struct placement *p, int worker)
{
    const int share = p->cores > p->workers ? p->cores / p->workers : 1;
    int same = 0;
    if (p->one_thread)
        return 1;
    if (!p->bindings)
        return share;
    const struct cpus *mine = &p->bindings[worker].cpus;
    for (int i = 0; i < p->workers; i++)
        same += cpus_equal(mine, &p->bindings[i].cpus);
    const int n = cpus_count(mine) / same;
    return n < 1 ? 1 : p->limited && n > share ? share : n;
}

bool placement_sets_threads(const struct placement *p)
{
    return (p->workers > 1 || (p->limited && !p->one_thread)) && !getenv("OMP_NUM_THREADS");
}

char *placement_text(const struct placement *p, int worker, char *out, size_t cap)
{
    char cpus[256], node[48] = "";
    out[0] = '\0';
    if (!p->bindings)
        return out;
    const struct binding *b = &p->bindings[worker];
    if (b->node >= 0)
        snprintf(node, sizeof node, ", memory of NUMA node %d", b->node);
    snprintf(out, cap, "CPUs %s%s", cpus_text(&b->cpus, cpus, sizeof cpus), node);
    return out;
}
