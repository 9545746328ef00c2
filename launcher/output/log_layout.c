#include "launcher/output/log_layout.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/err.h"
#include "common/base/path.h"
#include "launcher/output/log_conf.h"

static const char *const names[2][LOG_FILE_KINDS] = {{"out", "err", "error.json"},
                                                     {"stdout.log", "stderr.log", "error.json"}};

/* Absolute, because workers get paths below it and may change their folder. */
int log_layout_plan(struct log_layout *l, const struct log_conf *c, const char *run_id, struct err *e)
{
    char here[1024] = "";
    *l = (struct log_layout){.torchrun = c->layout == LOG_LAYOUT_TORCHRUN, .attempt = -1};
    if (!c->dir)
        return 0;
    if (c->dir[0] != '/' && !getcwd(here, sizeof here))
        return err_set(e, ERR_OUTPUT, "--log-dir %s: the current folder: %s", c->dir, strerror(errno));
    const char *slash = here[0] ? "/" : "";
    if ((size_t)snprintf(l->root, sizeof l->root, "%s%s%s", here, slash, c->dir) + strlen(run_id) + 9 >= sizeof l->root)
        return err_set(e, ERR_OUTPUT, "--log-dir: the path is too long");
    const size_t n = strlen(l->root);
    snprintf(l->root + n, sizeof l->root - n, "/%s%s", run_id, l->torchrun ? "_XXXXXX" : "");
    return 0;
}

int log_layout_open(struct log_layout *l, const struct log_conf *c, const char *run_id, struct err *e)
{
    TRY(log_layout_plan(l, c, run_id, e));
    if (!l->root[0] || !l->torchrun)
        return 0;
    char *slash = strrchr(l->root, '/');
    *slash = '\0';
    const int rc = path_make_dirs(l->root, e);
    *slash = '/';
    TRY(rc);
    if (!mkdtemp(l->root))
        return err_set(e, ERR_OUTPUT, "cannot make the log folder %s: %s", l->root, strerror(errno));
    return 0;
}

void log_layout_name_round(struct log_layout *l, uint64_t round, int restarts)
{
    if (l->torchrun) {
        l->attempt = restarts > l->attempt ? restarts : l->attempt + 1;
        snprintf(l->round, sizeof l->round, "%s/attempt_%d", l->root, l->attempt);
    } else {
        snprintf(l->round, sizeof l->round, "%s/round-%llu", l->root, (unsigned long long)round);
    }
}

int log_layout_begin_round(struct log_layout *l, uint64_t round, int restarts, struct err *e)
{
    if (!l->root[0])
        return 0;
    log_layout_name_round(l, round, restarts);
    return path_make_dirs(l->round, e);
}

int log_layout_begin_worker(const struct log_layout *l, int local, struct err *e)
{
    char path[LOG_PATH_MAX];
    if (!l->root[0] || !l->torchrun)
        return 0;
    snprintf(path, sizeof path, "%s/%d", l->round, local);
    return path_make_dirs(path, e);
}

char *log_layout_path(const struct log_layout *l, int local, int rank, enum log_file kind, char out[LOG_PATH_MAX])
{
    const char *name = names[l->torchrun][kind];
    if (l->torchrun)
        snprintf(out, LOG_PATH_MAX, "%s/%d/%s", l->round, local, name);
    else
        snprintf(out, LOG_PATH_MAX, "%s/rank-%d.%s", l->round, rank, name);
    return out;
}

char *log_layout_filtered(const struct log_layout *l, int group_rank, enum log_file kind, char out[LOG_PATH_MAX])
{
    const char *name = names[l->torchrun][kind];
    if (l->torchrun)
        snprintf(out, LOG_PATH_MAX, "%s/filtered_%s", l->round, name);
    else
        snprintf(out, LOG_PATH_MAX, "%s/filtered-%d.%s", l->round, group_rank, name);
    return out;
}
