/* Memory that the kernel may not take: a process that has to act within a second cannot wait for its pages to be read
 * back. */
#ifndef CRUN_LAUNCHER_RESIDENT_H
#define CRUN_LAUNCHER_RESIDENT_H

/* So long after its start a process has touched most of what it will, and the start of its workers is over. */
#define RESIDENT_AFTER_MS 100

/* Whatever this process has used, or will use, stays where it is; pages that it never touches cost nothing. What it
 * maps later on is included only where nothing limits it (ulimit -l), for beyond a limit mappings would fail. Where
 * even that is too much for the limit, nothing is kept. */
void resident_keep(void);

#endif
