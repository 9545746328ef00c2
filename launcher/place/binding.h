/* Which cores each worker of this node is bound to. binding_assign() is pure.
 *
 * A worker belongs to the NUMA node of its GPU. Where that is not known (no GPU) the cores are dealt out evenly, and a
 * worker belongs to the node where the middle of its share lies. Then, as torchrun's --numa-binding has it:
 *
 *   node          all cores of that node
 *   socket        all cores of the socket that the node is a part of
 *   exclusive     the node's cores are divided among the workers of the node, hardware threads of one core together;
 *                 the first get one more if they do not divide. Refused where a worker would get none
 *   core-complex  one group of cores that share the largest cache; the workers of a node take turns, the widest group
 *                 first
 *
 * Memory comes from the node as long as it has some, where all cores of the mask are of one node. */
#ifndef CRUN_LAUNCHER_BINDING_H
#define CRUN_LAUNCHER_BINDING_H

#include "launcher/place/cpus.h"

struct err;
struct topology;

enum binding_mode { BINDING_OFF, BINDING_NODE, BINDING_SOCKET, BINDING_EXCLUSIVE, BINDING_CORE_COMPLEX };
#define BINDING_CHOICES "off|node|socket|exclusive|core-complex" /* in the order of the enum */

struct binding {
    struct cpus cpus;
    int node; /* whose memory is preferred; -1: the default of the system */
};

/* near: NUMA node of each worker's GPU, -1 where not known; NULL: of all. ret: one for each worker. ERR_USAGE,
 * -ENOMEM. */
int binding_assign(const struct topology *t, enum binding_mode mode, int workers, const int *near, struct binding *ret,
                   struct err *e);

/* Bind the calling process. System calls only: may be called between fork and exec. 0; -errno if none of the cores may
 * be used. A system that forbids the choice of memory (containers may) is no error. */
int binding_apply(const struct binding *b);

#endif
