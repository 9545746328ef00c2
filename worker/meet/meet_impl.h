/* Shared by meet*.c only. */
#ifndef CRUN_WORKER_MEET_IMPL_H
#define CRUN_WORKER_MEET_IMPL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;
struct meet_host;
struct store;

/* A store's server on a thread of its own. loopback: for this host only; port 0: the kernel picks. tell: answer on this
 * host who asks for the port. */
struct meet_host_options {
    bool loopback, tell;
    int port;
};
int meet_host_open(struct meet_host **ret, const struct meet_host_options *o, int *ret_port, struct err *e);
void meet_host_close(struct meet_host *h); /* NULL allowed */

/* A socket where rank 0 is asked for its port, under a name made of what one start of the job has in common on this
 * host. */
int meet_port_listen(int *ret_fd, struct err *e);
void meet_port_answer(int fd, int port); /* whoever asks now; only this user is answered */
int meet_port_ask(int *ret_port, int64_t deadline, struct err *e);

/* A folder that all ranks see, as the place where rank 0 says where its store is. Each of the others leaves a note with
 * a number drawn for it, and looks for the answer to that number only, so that nothing an earlier run left is ever
 * read. What is there is removed once all have come. */
int meet_file_host(const char *dir, const char *run_id, int world, int port, struct store *own, int64_t deadline,
                   struct err *e);
int meet_file_ask(const char *dir, const char *run_id, int rank, int world, char *ret_host, size_t cap, int *ret_port,
                  int64_t deadline, struct err *e);
int meet_file_came(struct store *s, int world, int64_t deadline, struct err *e); /* others, once they have dialled */

/* First node of the Slurm step, and a port: every rank finds the same. False if the environment does not tell. */
bool meet_slurm(char *ret_host, size_t cap, int *ret_port);

/* A prefix that all ranks of this start share, and no other start of the job has: into text. */
int meet_agree(struct store *s, const char *run_id, int rank, int world, char *ret, size_t cap, int64_t deadline,
               struct err *e);

#endif
