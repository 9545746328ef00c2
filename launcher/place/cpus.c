/* Sets of logical CPUs as text, and this process's own (cpus.h). */
#include "launcher/place/cpus.h"

#include <errno.h>
#include <string.h>

#include "common/base/numbers.h"

static cpu_set_t *set(const struct cpus *c)
{
    return (cpu_set_t *)(void *)c->part;
}

void cpus_add(struct cpus *c, int cpu)
{
    CPU_SET_S((size_t)cpu, sizeof c->part, set(c));
}

bool cpus_has(const struct cpus *c, int cpu)
{
    return CPU_ISSET_S((size_t)cpu, sizeof c->part, set(c));
}

void cpus_add_all(struct cpus *c, const struct cpus *more)
{
    CPU_OR_S(sizeof c->part, set(c), set(c), set(more));
}

int cpus_count(const struct cpus *c)
{
    return CPU_COUNT_S(sizeof c->part, set(c));
}

bool cpus_equal(const struct cpus *a, const struct cpus *b)
{
    return memcmp(a, b, sizeof *a) == 0;
}

char *cpus_text(const struct cpus *c, char *out, size_t cap)
{
    struct ranges r = {.out = out, .cap = cap};
    out[0] = '\0';
    for (int i = 0; i < CPUS_MAX; i++)
        if (cpus_has(c, i))
            ranges_add(&r, i);
    return out;
}

int cpus_allowed(struct cpus *ret)
{
    struct cpus c = {0};
    if (sched_getaffinity(0, sizeof c.part, set(&c)) < 0)
        return -errno;
    *ret = c;
    return 0;
}
