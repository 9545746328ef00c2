/* The files of a failure report: failure.json, --failure-file, and the error record for a launcher around crun. The
 * output process writes them, so a disk that hangs blocks nobody else. */
#ifndef CRUN_LAUNCHER_FAILURE_FILES_H
#define CRUN_LAUNCHER_FAILURE_FILES_H

#include <stdbool.h>

struct cJSON;
struct failure_job;
struct failure_report_options;

#define FAILURE_FILES_MAX 8192

/* all: sorted. of_job: this is the report of the job, not only of this node. ret: names of the files, for people.
 * False: there is nothing to write. */
bool failure_files_write(const struct failure_report_options *o, const struct failure_job *job, const struct cJSON *all,
                         bool of_job, char ret[FAILURE_FILES_MAX]);

#endif
