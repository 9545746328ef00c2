#include "launcher/output/log_layout.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/clock.h"
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

/* As mkdtemp(3) does, which would make the folder. */
static void choose_suffix(char *out)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
    uint64_t random = 0;
    if (getrandom(&random, sizeof random, GRND_NONBLOCK) != sizeof random)
        random = (uint64_t)clock_ns() * UINT64_C(0x9e3779b97f4a7c15);
    for (int i = 0; i < 6; i++, random /= sizeof letters - 1)
        out[i] = letters[random % (sizeof letters - 1)];
}

int log_layout_choose(struct log_layout *l, const struct log_conf *c, const char *run_id, struct err *e)
{
    TRY(log_layout_plan(l, c, run_id, e));
    if (l->root[0] && l->torchrun)
        choose_suffix(l->root + strlen(l->root) - 6);
    return 0;
}

int log_layout_make_root(const struct log_layout *l, struct err *e)
{
    struct log_layout parent = *l;
    *strrchr(parent.root, '/') = '\0';
    TRY(path_make_dirs(parent.root, e));
    if (mkdir(l->root, 0700) < 0)
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

int log_layout_make_round(const struct log_layout *l, int workers, struct err *e)
{
    char path[LOG_PATH_MAX];
    if (!l->root[0])
        return 0;
    TRY(path_make_dirs(l->round, e));
    for (int i = 0; l->torchrun && i < workers; i++) {
        snprintf(path, sizeof path, "%s/%d", l->round, i);
        TRY(path_make_dirs(path, e));
    }
    return 0;
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
