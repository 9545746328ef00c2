/* A log file that a file_thread.h writes (file_thread.c has both).
 *
 * What it is to take waits in memory, FILE_WAITS_MAX of it, and FILES_WAIT_MAX of all files of a thread together. What
 * comes beyond is dropped by whole lines and counted, and a line in the file says how many bytes, once the disk works
 * again (logfile.h). Who asks queued_file_is_full() before it writes more loses nothing on a disk that is only slow. */
#ifndef CRUN_LAUNCHER_QUEUED_FILE_H
#define CRUN_LAUNCHER_QUEUED_FILE_H

#include "launcher/output/process/file_thread.h"
#include "launcher/output/process/logfile.h"

#define FILE_WAITS_MAX (1u << 20)
#define FILES_WAIT_MAX (64u << 20)

struct queued_file;

/* A file that a job will open (queued_file_open_now); its path and limits are copied. at_bytes: logfile_open(). NULL:
 * out of memory. */
struct queued_file *queued_file_create(struct file_thread *t, const char *path, size_t at_bytes,
                                       const struct logfile_limits *limits);
/* In a job, below that folder. ERR_OUTPUT: it takes everything in silence then. */
int queued_file_open_now(struct queued_file *f, int at, struct err *e);
void queued_file_write(struct queued_file *f, const char *data, size_t n);
bool queued_file_is_full(const struct queued_file *f); /* half of what may wait does */
void queued_file_close(struct queued_file *f);         /* once what waits is written; f is gone. NULL allowed */

struct amount queued_files_waiting(struct file_thread *t); /* of all */
uint64_t queued_files_lost(struct file_thread *t);         /* bytes that they did not take, in all */

#endif
