/* What /proc shows of a worker that reports nothing: the samples of quiet.h. */
#ifndef CRUN_LAUNCHER_SIGNS_H
#define CRUN_LAUNCHER_SIGNS_H

#include <stdbool.h>
#include <sys/types.h>

struct quiet_rank;
struct quiet_sample;

/* Processor time of the process and of all below it; bytes that it has read and written itself, 0 where it may not be
 * asked. false: it is gone. */
bool signs_read(pid_t pid, struct quiet_sample *ret);

void signs_place(pid_t pid, struct quiet_rank *ret); /* where it waits */

#endif
