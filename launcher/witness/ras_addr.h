/* Where NCCL's RAS of a worker listens. RAS binds NCCL_RAS_ADDR with SO_REUSEPORT, so workers that share an address
 * share its questions, and one that is stopped swallows some of them: each worker gets an address of its own. Pure, but
 * for the environment. */
#ifndef CRUN_LAUNCHER_RAS_ADDR_H
#define CRUN_LAUNCHER_RAS_ADDR_H

#include <stdbool.h>
#include <sys/types.h>

#define RAS_VARIABLE "NCCL_RAS_ADDR"
#define RAS_PORT 28028     /* NCCL's own */
#define RAS_ADDRESS_MAX 64 /* bytes of "127.71.12.1:28028" */

/* The user has not set RAS_VARIABLE, nor switched RAS off (NCCL_RAS_ENABLE=0). */
bool ras_gives_addresses(void);
bool ras_is_off(void);

/* Of the worker with this local rank, below the crun with this process id: 127.64.0.1 to 127.191.255.254, the same in
 * all rounds. Another crun on this machine has the same one in one case of 32,768. Returns out. */
char *ras_address(pid_t crun, int local, char out[RAS_ADDRESS_MAX]);

/* The addresses of this host but those of the loopback, with commas between them; "-": none. RAS names hosts so. */
#define RAS_HOSTS_MAX 512
char *ras_hosts(char out[RAS_HOSTS_MAX]);

/* All of them, for people: "127.71.12.1-8:28028"; of more than 254 workers the first 254. */
void ras_list(pid_t crun, int workers, char out[RAS_ADDRESS_MAX]);

#endif
