/* Where log files and error records lie. Nothing that is there already is removed or overwritten.
 *
 * Other users may be able to write into the folder above the root. So a root of a random name is made anew, with mode
 * 0700, and so is the folder above it if that is in a shared one (log_conf.dir_is_private). All below the root is made
 * and opened through a descriptor of the root, and no link is followed there: nobody can put another folder in its
 * place. A root of a predictable name may be a link, if that is our user's or root's.
 *
 *   crun       DIR/RUN_ID/round-R/rank-N.{out,err,error.json}
 *              DIR/RUN_ID/round-R/filtered-G.{out,err}                   G: group rank
 *              Predictable, one tree for all nodes.
 *   torchrun   DIR/RUN_ID_XXXXXX/attempt_A/LOCAL_RANK/{stdout.log,stderr.log,error.json}
 *              DIR/RUN_ID_XXXXXX/attempt_A/filtered_{stdout,stderr}.log
 *              A: restarts, or one more than before after a restart that does not count, so that the logs of an
 *              interrupted attempt stay. */
#ifndef CRUN_LAUNCHER_LOG_LAYOUT_H
#define CRUN_LAUNCHER_LOG_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;
struct log_conf;

struct log_layout {
    bool torchrun;
    bool is_private; /* the folder that holds the root is made with it */
    int attempt;     /* the last one, -1: none */
    char root[2048]; /* absolute; "": no files */
    char round[2112];
};

enum log_file { LOG_FILE_OUT, LOG_FILE_ERR, LOG_FILE_ERROR, LOG_FILE_KINDS };

#define LOG_PATH_MAX 2304

/* Names only, nothing is made (--dry-run): of the layout, then of a round. ERR_OUTPUT: too long. */
int log_layout_plan(struct log_layout *l, const struct log_conf *c, const char *run_id, struct err *e);
void log_layout_name_round(struct log_layout *l, uint64_t round, int restarts);

/* The same, with the random parts chosen. */
int log_layout_choose(struct log_layout *l, const struct log_conf *c, const char *run_id, struct err *e);
/* The root folder is made, which must not be there. ERR_OUTPUT. */
int log_layout_make_root(const struct log_layout *l, struct err *e);
/* A descriptor of the root folder, the caller's. One of a name that is not random is made if it is not there.
 * ERR_OUTPUT. */
int log_layout_open_root(const struct log_layout *l, struct err *e);
/* The folders of the named round and of its workers are made. ERR_OUTPUT. */
int log_layout_make_round(const struct log_layout *l, int root_fd, int workers, struct err *e);
/* How many bytes of a path below the root are the root, and the slash. */
size_t log_layout_root_bytes(const struct log_layout *l);
char *log_layout_path(const struct log_layout *l, int local, int rank, enum log_file kind, char out[LOG_PATH_MAX]);
char *log_layout_filtered(const struct log_layout *l, int group_rank, enum log_file kind, char out[LOG_PATH_MAX]);

#endif
