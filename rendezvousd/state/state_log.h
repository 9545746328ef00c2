/* The format of a log in the state directory. Pure.
 *
 *     "rendezvousd-log VERSION\n", then frames (common/rdzv/wire/rdzv_frame.h), numbered from 1 without gaps
 *
 * VERSION is also that of the texts: LEADER_FORMAT; the version before it can be read as well. A file that ends
 * within a frame (the daemon or its host died while writing) is valid up to there; a bad frame followed by a good
 * one is damage. */
#ifndef CRUN_RENDEZVOUSD_STATE_LOG_H
#define CRUN_RENDEZVOUSD_STATE_LOG_H

#include <stddef.h>

struct buf;
struct err;

#define STATE_LOG_HEADER_MAX 32 /* bytes of the first line */

int state_log_header(struct buf *out); /* -ENOMEM */

/* Check the beginning of a file: STATE_LOG_HEADER_MAX bytes, or all that there are. *ret: length of its first line,
 * 0: the file ends within it. ERR_MISMATCH: another version, named in e; ERR_CORRUPT: not our file. */
int state_log_check(const char *p, size_t n, size_t *ret, struct err *e);

/* Append the texts of all whole frames to *out, each ended by a newline. *ret_good: bytes of them and the header in
 * the file. Errors as state_log_check(); ERR_CORRUPT also for damage before the end; -ENOMEM. */
int state_log_parse(const char *p, size_t n, struct buf *out, size_t *ret_good, struct err *e);

#endif
