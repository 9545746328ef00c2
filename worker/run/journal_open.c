/* Files of a run: opened, cut back to where it goes on, closed. */
#include "worker/run/journal.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/base/path.h"
#include "worker/config/config.h"
#include "worker/data/sets/dataset.h"
#include "worker/program/program.h"
#include "worker/report/caffe2_log.h"
#include "worker/report/metrics.h"
#include "worker/report/tensorboard.h"
#include "worker/run/step.h"
#include "worker/session/session.h"
#include "worker/snapshot/output_folder.h"

/* Two live runs in one folder would rename and cut each other's metrics. A folder of checkpoints too is locked
 * already. */
static int lock_folder(struct journal *j, const struct session *s, const char *dir, struct err *e)
{
    struct stat mine, held;
    const int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return err_errno(e, errno, "open the log folder %s", dir);
    if (s->lock_fd >= 0 && fstat(fd, &mine) == 0 && fstat(s->lock_fd, &held) == 0 && mine.st_dev == held.st_dev &&
        mine.st_ino == held.st_ino) {
        close(fd);
        return 0;
    }
    j->lock_fd = fd;
    if (output_folder_lock_fails(fd))
        return err_set(e, ERR_OUTPUT, "another run that is still alive writes its logs to %s", dir);
    return 0;
}

/* A new run in the log folder of an older one: what that one wrote is kept under another name. */
static int set_aside(const char *path, struct err *e)
{
    char old[4200], when[CLOCK_ISO_LEN];
    struct stat st;
    if (stat(path, &st) < 0 || st.st_size == 0)
        return 0;
    snprintf(old, sizeof old, "%s.until-%s", path, clock_iso(when, sizeof when));
    return rename(path, old) < 0 ? err_errno(e, errno, "rename %s", path) : 0;
}

/* What the run came to, wherever that came from. */
static cJSON *describe(const struct session *s, const char *command_line)
{
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "command_line", command_line);
    cJSON_AddNumberToObject(o, "world", s->layout.world);
    cJSON_AddNumberToObject(o, "nodes", s->nodes);
    cJSON_AddNumberToObject(o, "threads", s->threads);
    cJSON_AddNumberToObject(o, "loader_threads", s->loader_threads);
    cJSON_AddStringToObject(o, "device_text", s->device_text);
    cJSON_AddNumberToObject(o, "classes", (double)s->identity.num_labels);
    cJSON_AddNumberToObject(o, "train_images", (double)s->train_set->n);
    cJSON_AddNumberToObject(o, "parameters", (double)(program_trainable(s->whole) + program_frozen(s->whole)));
    cJSON *config = cJSON_AddObjectToObject(o, "config");
    args_json(&train_program, s->cfg, config);
    return o;
}

static int open_files(struct journal *j, const struct session *s, struct position *at, bool evaluates, bool resumed,
                      int restart, const char *dir, const char *command_line, struct err *e)
{
    char path[4096];
    double logged;
    TRY(path_make_writable(dir, e));
    TRY(lock_folder(j, s, dir, e));
    snprintf(j->bad_samples, sizeof j->bad_samples, "%s/bad-samples.txt", dir);
    snprintf(path, sizeof path, "%s/metrics.jsonl", dir);
    if (!resumed && restart == 0) {
        TRY(set_aside(path, e));
        TRY(set_aside(j->bad_samples, e));
    }
    TRY(metrics_open(&j->metrics, path, at->updates, evaluates, &logged, e));
    at->seconds = fmax(at->seconds, logged);
    TRY(metrics_event(j->metrics, resumed ? "resume" : "start", at->updates, restart, describe(s, command_line), e));
    struct caffe2_log_options o = {.dir = dir,
                                   .arch = s->cfg->arch,
                                   .devices = s->layout.world,
                                   .batch = (int)s->cfg->batch_size,
                                   .labels = (int)s->identity.num_labels,
                                   .lr = s->cfg->base_lr,
                                   .parameters = command_line,
                                   .resume = resumed};
    TRY(caffe2_log_open(&j->csv, &o, at->epoch, &logged, e));
    at->seconds = fmax(at->seconds, logged);
    return 0;
}

int journal_check(const struct session *s, struct err *e)
{
    struct journal j = {0};
    if (!s->leads || s->cfg->evaluate)
        return 0;
    int rc = s->cfg->log_dir ? lock_folder(&j, s, s->cfg->log_dir, e) : 0;
    if (j.lock_fd > 0)
        close(j.lock_fd);
    return rc == 0 && s->cfg->tensorboard ? path_make_writable(s->cfg->tensorboard, e) : rc;
}

static void begin_progress(struct journal *j, const struct session *s)
{
    j->lines = j->active || s->cfg->log_all_ranks;
    if (!s->leads)
        snprintf(j->prefix, sizeof j->prefix, "rank %d: ", s->rank);
    progress_init(&j->progress, (enum progress_format)s->cfg->progress, (int)s->cfg->print_freq, j->prefix);
}

int journal_open(struct journal *j, const struct session *s, struct position *at, bool evaluates, bool resumed,
                 int restart, const char *command_line, struct err *e)
{
    const char *dir = s->cfg->log_dir ? s->cfg->log_dir : s->cfg->checkpoint_dir;
    *j = (struct journal){.active = s->leads, .opened_ns = clock_ns()};
    begin_progress(j, s);
    if (!j->active || s->cfg->evaluate)
        return 0;
    int rc = dir ? open_files(j, s, at, evaluates, resumed, restart, dir, command_line, e) : 0;
    if (rc == 0 && s->cfg->tensorboard)
        rc = tensorboard_open(&j->tensorboard, s->cfg->tensorboard, at->updates, e);
    if (rc < 0)
        journal_close(j);
    return rc;
}

void journal_close(struct journal *j)
{
    if (j->lines)
        progress_end_line(&j->progress);
    if (j->csv)
        caffe2_log_close(j->csv);
    if (j->metrics)
        metrics_close(j->metrics);
    tensorboard_close(j->tensorboard);
    if (j->lock_fd > 0)
        close(j->lock_fd);
    *j = (struct journal){0};
}
