/* How ranks of one communicator find each other: everybody leaves a record in the store, everybody reads all of them;
 * or they send them to each other over a communicator that is open (comm_options.through). */
#ifndef CRUN_WORKER_COMM_PEERS_H
#define CRUN_WORKER_COMM_PEERS_H

#include <stddef.h>
#include <stdint.h>

#include "worker/comm/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

#define PEERS_ADDRESS_LEN 64 /* numeric address and its NUL */

/* Publish `mine` (a string) as this rank's record `what` and get those of all ranks: ret[world], each at most max
 * bytes, allocated; free with peers_free(). max is the same on all ranks. deadline: of clock_ms(), of the store;
 * through a communicator its own deadline counts. -ETIMEDOUT names the ranks that left none. */
int peers_exchange(const struct comm_options *o, const char *what, const char *mine, size_t max, int64_t deadline,
                   char ***ret, struct err *e);
void peers_free(char **records, int world);

/* Agree on how this rank is reached: bind_addr if given; loopback if all ranks run on this host (same boot, same
 * network name-space); else the address from which the first rank of another host is reached. ERR_MISMATCH if ranks
 * disagree on the size of the world; -ENODEV if two that do not share (comm_options.shares_device) are on one GPU. */
int peers_address(const struct comm_options *o, int64_t deadline, char ret[PEERS_ADDRESS_LEN], struct err *e);

/* An address by which other hosts may reach this one: that of the default route; where there is none, in a cluster that
 * nothing leads out of, the first that this host has; loopback if it has none. */
void peers_default_address(char ret[PEERS_ADDRESS_LEN]);

/* Equal for two processes exactly if loopback connects them. A word of less than cap bytes. */
void peers_host_identity(char *out, size_t cap);

#ifdef __cplusplus
}
#endif

#endif
