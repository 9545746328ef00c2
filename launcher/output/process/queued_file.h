/* A log file that a file_thread.h writes (file_thread.c has both).
 *
 * Bytes to be written wait in memory: FILE_WAITS_MAX at most, and FILES_WAIT_MAX for all files of a thread together.
 * Further whole lines are dropped and counted, and a line in the file says how many bytes, once the disk works again
 * (logfile.h). A caller that asks queued_file_is_full() before it writes loses nothing on a disk that is merely
 * slow. */
#ifndef CRUN_LAUNCHER_QUEUED_FILE_H
#define CRUN_LAUNCHER_QUEUED_FILE_H

#include "launcher/output/process/file_thread.h"
#include "launcher/output/process/logfile.h"

#define FILE_WAITS_MAX (1u << 20)
#define FILES_WAIT_MAX (64u << 20)

struct queued_file;

/* Create a file that a job will open (queued_file_open_now); path and limits are copied. at_bytes: see
 * logfile_open(). NULL: no memory. */
struct queued_file *queued_file_create(struct file_thread *t, const char *path, size_t at_bytes,
                                       const struct logfile_limits *limits);
/* In a job: open the file below the folder `at`. ERR_OUTPUT: the file ignores everything from then on. */
int queued_file_open_now(struct queued_file *f, int at, struct err *e);
void queued_file_write(struct queued_file *f, const char *data, size_t n);
bool queued_file_is_full(const struct queued_file *f); /* half of what may wait does */
void queued_file_close(struct queued_file *f);         /* f is freed once what waits is written. NULL allowed */

struct amount queued_files_waiting(struct file_thread *t); /* of all */
uint64_t queued_files_lost(struct file_thread *t);         /* total bytes that the files did not accept */

#endif
