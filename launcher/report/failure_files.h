/* The files that a failure report leaves: failure.json, --failure-file, and what a launcher around crun reads. The
 * output process writes them; a disk that hangs holds up nobody. */
#ifndef CRUN_LAUNCHER_FAILURE_FILES_H
#define CRUN_LAUNCHER_FAILURE_FILES_H

#include <stdbool.h>

struct cJSON;
struct failure_job;
struct failure_report_options;

#define FAILURE_FILES_MAX 8192

/* all: sorted. of_job: it is the report of the job, not of this node alone. ret: their names, for people. False: there
 * is nothing to write. */
bool failure_files_write(const struct failure_report_options *o, const struct failure_job *job, const struct cJSON *all,
                         bool of_job, char ret[FAILURE_FILES_MAX]);

#endif
