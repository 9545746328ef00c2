/* What threads of the output process do beside the workers' output: consoles that are files (console_file.h), a
 * standard input that is one (stdin_file.h), shared folders of a rendezvous (home_process.h). One of each process. */
#ifndef CRUN_LAUNCHER_APART_JOBS_H
#define CRUN_LAUNCHER_APART_JOBS_H

#include <stdbool.h>
#include <uv.h>

struct apart_jobs;
struct guardian_output;

/* g stays. 0 or -errno. */
int apart_jobs_start(struct apart_jobs **ret, uv_loop_t *loop, const struct guardian_output *g);
/* What the guardian said. */
void apart_jobs_take_word(struct apart_jobs *a, char word);
/* At the end: for what the guardian may still say. Not where a disk may hold other threads: the guardian names a
 * process that cannot end, and another one writes that. */
bool apart_jobs_stay(struct apart_jobs *a);
/* Blocks until all that is printed is in the files; stays: by the guardian too, unless that is gone. */
void apart_jobs_end(struct apart_jobs *a, bool guardian_is_gone, bool stays);

#endif
