/* The paths of log files and error records. Existing files are never removed or overwritten.
 *
 * Other users may be able to write into the folder above the root. So a root with a random name must be new, with mode
 * 0700, and so must the folder above it if it is inside a shared one (log_conf.dir_is_private). Everything below the
 * root is made and opened through a descriptor of the root, without following links, so nobody can replace the folder.
 * A root with a predictable name may be a link that this user or root owns.
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
    bool is_private; /* the folder that holds the root is made together with it */
    int attempt;     /* the last one, -1: none */
    char root[2048]; /* absolute; "": no files */
    char round[2112];
};

enum log_file { LOG_FILE_OUT, LOG_FILE_ERR, LOG_FILE_ERROR, LOG_FILE_KINDS };

#define LOG_PATH_MAX 2304

/* Compute names without making anything (for --dry-run): of the layout, then of a round. ERR_OUTPUT: a path is too
 * long. */
int log_layout_plan(struct log_layout *l, const struct log_conf *c, const char *run_id, struct err *e);
void log_layout_name_round(struct log_layout *l, uint64_t round, int restarts);

/* The same, with the random parts chosen. */
int log_layout_choose(struct log_layout *l, const struct log_conf *c, const char *run_id, struct err *e);
/* Make the root folder; it must not exist. ERR_OUTPUT. */
int log_layout_make_root(const struct log_layout *l, struct err *e);
/* Open the root folder; the caller closes it. A root without a random name is made if it does not exist. ERR_OUTPUT. */
int log_layout_open_root(const struct log_layout *l, struct err *e);
/* Make the folders of the named round and of its workers. ERR_OUTPUT. */
int log_layout_make_round(const struct log_layout *l, int root_fd, int workers, struct err *e);
/* Number of leading bytes of a path that are the root and the slash. */
size_t log_layout_root_bytes(const struct log_layout *l);
char *log_layout_path(const struct log_layout *l, int local, int rank, enum log_file kind, char out[LOG_PATH_MAX]);
char *log_layout_filtered(const struct log_layout *l, int group_rank, enum log_file kind, char out[LOG_PATH_MAX]);

#endif
