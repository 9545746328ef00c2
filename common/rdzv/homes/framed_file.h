/* Small files of one frame each (common/rdzv/wire/rdzv_frame.h), written in place: who reads one while it is written
 * sees that it is torn. For folders on NFS, of which only close-to-open coherence is relied on. Blocking. */
#ifndef CRUN_COMMON_FRAMED_FILE_H
#define CRUN_COMMON_FRAMED_FILE_H

#include <stdbool.h>
#include <stddef.h>

struct buf;

/* A file name for any text; cut off at cap. */
void framed_file_escape(const char *text, char *out, size_t cap);

/* In folder `at`; flags: those of open(2) besides O_WRONLY | O_CREAT; sync: on disk when it returns. 0 or -errno. */
int framed_file_write(int at, const char *path, int flags, bool sync, const char *text, size_t n);

/* The text, over what out held. -ENOENT if there is none; -EAGAIN if it stays torn: its writer stopped in the middle,
 * or goes on; -errno. */
int framed_file_read(int at, const char *path, struct buf *out);

#endif
