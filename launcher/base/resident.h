/* Keeps memory resident: a process that must act within a second cannot wait for its pages to be read back. */
#ifndef CRUN_LAUNCHER_RESIDENT_H
#define CRUN_LAUNCHER_RESIDENT_H

/* ms after the start: a process has touched most of its memory by then, and its workers have been started. */
#define RESIDENT_AFTER_MS 100

/* Keep all memory that this process has used, or will use, resident; pages that it never touches cost nothing.
 * Memory mapped later is included only if there is no limit (ulimit -l), because beyond a limit mappings would fail.
 * If even the present memory exceeds the limit, nothing is kept. */
void resident_keep(void);

#endif
