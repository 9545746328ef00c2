/* Shared by rdzv_log_file*.c only: a handle's state, and the files of its folder. */
#ifndef CRUN_COMMON_RDZV_LOG_FILE_INTERNAL_H
#define CRUN_COMMON_RDZV_LOG_FILE_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "common/base/buf.h"
#include "common/rdzv/homes/rdzv_home.h"

#define FILE_NAME_CAP 300

struct file_home {
    struct rdzv_home base;
    char *dir;  /* of all jobs */
    char *name; /* of ours in it */
    int dir_fd, job_fd;
    ino_t job_inode;
    int64_t keep_ms;
    char epoch[RDZV_EPOCH_MAX + 1]; /* newest seen */
    char own_epoch[RDZV_EPOCH_MAX + 1];
    bool has_slot;                /* the file of our node is there */
    unsigned next;                /* number of the next decision */
    struct buf pulse;             /* newest seen of the newest epoch */
    uint32_t slot_crc, calls_crc; /* of what was seen last */
    int64_t active;               /* when something last happened */
};

/* Framed files below the job's folder. */
int file_write(struct file_home *h, const char *path, int flags, bool sync, const char *text, size_t n, struct err *e);
int file_read(struct file_home *h, const char *path, struct buf *out, struct err *e);

/* Make and open the job's folder, if it is not, or not the same any more. */
int file_inside(struct file_home *h, struct err *e);
int file_inside_if_there(struct file_home *h, struct err *e); /* for who only reads; makes nothing. 1: it is not */

void file_leave(struct file_home *h); /* close it */

int64_t file_poll_ms(struct file_home *h);
bool file_doze(struct file_home *h, int64_t ms); /* false: interrupted before that */

/* rdzv_home_ops.address: the first address of a network that is up; loopback if there is none. Touches no disk. */
int file_address(struct rdzv_home *base, char *ret, size_t cap, struct err *e);

/* rdzv_log_file_clear.c: the node's files go, the job's with the last node's, and what jobs left in DIR long ago. */
void file_forget(struct rdzv_home *base, const char *node);

/* rdzv_log_file_lead.c: the leader's calls (rdzv_home.h) */
int file_identity(struct rdzv_home *base, char ret[RDZV_IDENTITY_MAX + 1], struct err *e);
int file_claim(struct rdzv_home *base, const char *seen, const char *epoch, const struct buf *record, struct err *e);
int file_load(struct rdzv_home *base, struct buf *ret, struct err *e);
int file_append(struct rdzv_home *base, const struct rdzv_write *w, struct err *e);
int file_pulse(struct rdzv_home *base, const struct buf *record, struct err *e);
int file_beats(struct rdzv_home *base, bool all, rdzv_beat_visit *visit, void *arg, struct err *e);
int file_wait_calls(struct rdzv_home *base, int64_t timeout_ms, struct err *e);

#endif
