/* Shared by rdzv_log_file*.c only: a handle's state, and the files of its folder. */
#ifndef CRUN_COMMON_RDZV_LOG_FILE_INTERNAL_H
#define CRUN_COMMON_RDZV_LOG_FILE_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "common/base/buf.h"
#include "common/rdzv/homes/rdzv_home.h"

#define FILE_NAME_CAP 300
#define FILE_CLAIM "claim" /* folders in a job's; what is old is told by them */
#define FILE_LOG "log"
#define FILE_MARK "decision-00000001" /* a file for crun of older versions, which reads it and refuses the job */

struct file_home {
    struct rdzv_home base;
    char *dir;  /* of all jobs */
    char *name; /* of ours in it */
    int dir_fd, job_fd;
    int64_t keep_ms;
    int64_t claimed;                /* when this handle claimed; 0: it has not */
    unsigned next;                  /* number of the next decision; 0: nothing was read yet */
    char reign[RDZV_EPOCH_MAX + 1]; /* of the newest decision read */
};

void file_leave(struct file_home *h); /* close the job's folder */

/* rdzv_log_file_clear.c: the job's folder goes, and what jobs left in DIR long ago. */
void file_forget(struct rdzv_home *base);
void file_remove(int dir_fd, int job_fd, const char *name); /* a job's folder, whatever its name, with all of it */

/* rdzv_log_file_claim.c: the token */
int file_token_make(int job_fd); /* of a job that nobody has claimed; 0, -errno */
int file_look(struct rdzv_home *base, struct rdzv_claim *ret, struct err *e);
/* 1: the token is own's now; 0: it is not `seen` any more. */
int file_token_take(struct file_home *h, const struct rdzv_claim *seen, const struct rdzv_claim *own, struct err *e);
int file_token_renew(struct file_home *h, struct rdzv_claim *own, struct err *e);

/* rdzv_log_file.c: make and open the job's folder, if it is not, or not the same any more. make false: for who only
 * reads; 1: there is none. */
int file_inside(struct file_home *h, bool make, struct err *e);
int file_write(struct file_home *h, const char *path, int flags, bool sync, const char *text, size_t n, struct err *e);
int file_read(struct file_home *h, const char *path, struct buf *out, struct err *e);

#endif
