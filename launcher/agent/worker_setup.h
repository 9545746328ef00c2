/* What each worker of this node gets: cores, GPU and adapters, cgroup, environment, arguments, a path for its error
 * record. */
#ifndef CRUN_LAUNCHER_WORKER_SETUP_H
#define CRUN_LAUNCHER_WORKER_SETUP_H

#include <stdint.h>

struct binding;
struct cgroup;
struct crun_page_round;
struct err;
struct run;

int worker_setup_open(struct run *r, struct err *e); /* sets r->setup: placement and cgroup */
void worker_setup_close(struct run *r);

/* Choose OMP_NUM_THREADS if the user did not, and print it. */
void worker_setup_choose_threads(struct run *r);

/* Where the workers' NCCL RAS listens, for people; "": they got no addresses. */
const char *worker_setup_ras(const struct run *r);
const struct binding *worker_setup_bindings(const struct run *r); /* one for each worker; NULL: workers are not bound */
struct cgroup *worker_setup_cgroup(const struct run *r);          /* NULL: none */
/* Make the cgroup of the next round. If that fails, the round goes on without, unless the user requires one. */
int worker_setup_begin_round(struct run *r, uint64_t round, struct err *e);
void worker_setup_started(const struct run *r); /* its workers run */

/* struct group_events.make_error_path, make_env, make_argv and make_round; arg: the struct run. */
const char *worker_setup_error_path(void *arg, int local, int spare);
int worker_setup_env(void *arg, int local, int page_fd, const char *error_path, char ***ret, struct err *e);
int worker_setup_argv(void *arg, int local, char ***ret, struct err *e);
void worker_setup_round(void *arg, int local, struct crun_page_round *ret);

#endif
