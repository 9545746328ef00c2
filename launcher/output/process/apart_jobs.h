/* Jobs that threads of the output process do besides the workers' output: consoles that are files (console_file.h),
 * a standard input that is a file (stdin_file.h), shared folders of a rendezvous (home_process.h). One instance per
 * process. */
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
/* At the end: may this process stay to write what the guardian still prints? Not if a disk may block other threads:
 * the guardian then prints that this process cannot be ended, and another output process writes that line. */
bool apart_jobs_stay(struct apart_jobs *a);
/* Wait until everything printed is in the files; stays: also what the guardian prints, unless it is gone. */
void apart_jobs_end(struct apart_jobs *a, bool guardian_is_gone, bool stays);

#endif
