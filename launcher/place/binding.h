/* Which cores each worker of this node is bound to. binding_assign() is pure.
 *
 * A worker belongs to the NUMA node of its GPU. If that is not known (no GPU), cores are distributed evenly, and a
 * worker belongs to the node that contains the middle of its share. Then, as with torchrun's --numa-binding:
 *
 *   node          all cores of that node
 *   socket        all cores of the socket that the node is a part of
 *   exclusive     the node's cores are divided among the workers of the node, hardware threads of one core together;
 *                 the first get one more if they do not divide. Refused if a worker would get none
 *   core-complex  one group of cores that share the largest cache; the workers of a node take turns, the widest group
 *                 first
 *
 * If all cores of the mask are of one node, memory comes from that node as long as it has some. */
#ifndef CRUN_LAUNCHER_BINDING_H
#define CRUN_LAUNCHER_BINDING_H

#include "launcher/place/cpus.h"

struct err;
struct topology;

enum binding_mode { BINDING_OFF, BINDING_NODE, BINDING_SOCKET, BINDING_EXCLUSIVE, BINDING_CORE_COMPLEX };
#define BINDING_CHOICES "off|node|socket|exclusive|core-complex" /* in the order of the enum */

struct binding {
    struct cpus cpus;
    int node; /* NUMA node whose memory is preferred; -1: the system's default */
};

/* near: NUMA node of each worker's GPU, -1 if not known; NULL: not known for all. ret: one for each worker.
 * ERR_USAGE, -ENOMEM. */
int binding_assign(const struct topology *t, enum binding_mode mode, int workers, const int *near, struct binding *ret,
                   struct err *e);

/* Bind the calling process. System calls only, so it may be called between fork and exec. 0; -errno if none of the
 * cores may be used. If the system forbids a choice of memory (containers may), that is ignored. */
int binding_apply(const struct binding *b);

#endif
