/* The addresses where NCCL's RAS of each worker listens. RAS binds NCCL_RAS_ADDR with SO_REUSEPORT: workers with the
 * same address would share its questions, and a stopped one would swallow some. So each worker gets an address of
 * its own. Pure, except for the environment. */
#ifndef CRUN_LAUNCHER_RAS_ADDR_H
#define CRUN_LAUNCHER_RAS_ADDR_H

#include <stdbool.h>
#include <sys/types.h>

#define RAS_VARIABLE "NCCL_RAS_ADDR"
#define RAS_PORT 28028     /* NCCL's own */
#define RAS_ADDRESS_MAX 64 /* bytes of "127.71.12.1:28028" */

/* What the user has set as RAS_VARIABLE, if that is no address with a port; NULL: nothing, or one. */
const char *ras_typed_badly(void);
/* True unless the user has set RAS_VARIABLE, or switched RAS off (NCCL_RAS_ENABLE=0). */
bool ras_gives_addresses(void);
bool ras_is_off(void);

/* The address for a worker, by its local rank and crun's pid: 127.64.0.1 to 127.191.255.254, the same in all rounds.
 * Another crun on this machine has the same address in one of 32,768 cases. Returns out. */
char *ras_address(pid_t crun, int local, char out[RAS_ADDRESS_MAX]);

/* The non-loopback addresses of this host, separated by commas; "-": none. RAS identifies hosts by them. */
#define RAS_HOSTS_MAX 512
char *ras_hosts(char out[RAS_HOSTS_MAX]);

/* All addresses of a node's workers, for people: "127.71.12.1-8:28028"; of more than 254 workers the first 254. */
void ras_list(pid_t crun, int workers, char out[RAS_ADDRESS_MAX]);

#endif
