/* NCCL, in the GPU module. nccl.c is struct comm_ops: calls are enqueued on the caller's stream, into a capture too; a
 * watchdog sees that they end.
 *
 *   store -> nccl_peers.h: can these ranks work together? -> ncclCommInit* -> a communicator a channel
 *   gradients on the GPU -> all_reduce(stream) -> the same memory, sums over all ranks
 *
 * nccl_peers: what the ranks of an NCCL communicator tell each other through the store before NCCL itself begins, so
 * that what NCCL would answer with "internal error" or with silence becomes a sentence. Pure: tested without NCCL. */
#ifndef CRUN_WORKER_DEVICE_CUDA_NCCL_PEERS_H
#define CRUN_WORKER_DEVICE_CUDA_NCCL_PEERS_H

#include <stdbool.h>
#include <stddef.h>

struct err;

#define NCCL_ID_BYTES 128
#define NCCL_RECORD_BYTES 768

struct nccl_peer {
    int version;                    /* ncclGetVersion(): 22809 */
    char host[128];                 /* equal for two processes of one machine */
    char hostid[64];                /* NCCL_HOSTID, or "-" */
    char gpu[64];                   /* its UUID */
    char id[2 * NCCL_ID_BYTES + 1]; /* rank 0: NCCL's unique id in hexadecimal; else "-" */
};

void nccl_peer_write(const struct nccl_peer *p, char out[NCCL_RECORD_BYTES]);
/* -EPROTO names the rank. */
int nccl_peer_read(struct nccl_peer *ret, const char *text, int rank, struct err *e);

/* ERR_MISMATCH: two ranks have different NCCL. -EBUSY: two ranks have one GPU and do not pass for different hosts. Both
 * ranks are named. */
int nccl_peers_check(const struct nccl_peer *peers, int world, struct err *e);

void nccl_id_write(const void *id, char out[2 * NCCL_ID_BYTES + 1]);
int nccl_id_read(void *id, const char *text, struct err *e);

/* Does NCCL_SOCKET_IFNAME (a list of prefixes; '=' before it: of names; '^': of those to leave out) allow this
 * interface? NULL or "": yes, but for loopback and docker. */
bool nccl_interface_allowed(const char *setting, const char *name);
/* -ENODEV where it allows none of this machine's interfaces; lists them. */
int nccl_interfaces_check(const char *setting, struct err *e);

#endif
