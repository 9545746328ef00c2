/* A record: u64 length, masked CRC32C of the length, data, masked CRC32C of the data, all little-endian
 * (tensorflow/core/lib/io/ record_writer.h). */
#include "worker/report/tensorboard.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/base/crc32c.h"
#include "common/base/err.h"
#include "common/base/path.h"
#include "events.pb-c.h"
#include "worker/report/lines.h"

#define SCALARS_MAX 32
#define FRAME_BYTES 16

struct tensorboard {
    int fd;
    char path[PATH_MAX];
};

static void put_le(uint8_t *out, uint64_t v, int bytes)
{
    for (int i = 0; i < bytes; i++)
        out[i] = (uint8_t)(v >> (8 * i));
}

static uint32_t masked_crc(const void *data, size_t n)
{
    const uint32_t crc = crc32c(0, data, n);
    return ((crc >> 15) | (crc << 17)) + 0xa282ead8U;
}

static int put_event(struct tensorboard *t, Crun__Events__Event *event, struct err *e)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    event->has_wall_time = 1;
    event->wall_time = (double)now.tv_sec + (double)now.tv_nsec / 1e9;
    const size_t n = crun__events__event__get_packed_size(event);
    uint8_t *record = malloc(n + FRAME_BYTES);
    if (!record)
        return err_set(e, -ENOMEM, "no memory for an event");
    put_le(record, n, 8);
    put_le(record + 8, masked_crc(record, 8), 4);
    crun__events__event__pack(event, record + 12);
    put_le(record + 12 + n, masked_crc(record + 12, n), 4);
    int rc = lines_write(t->fd, (const char *)record, n + FRAME_BYTES, t->path, e);
    free(record);
    return rc;
}

static int put_head(struct tensorboard *t, int64_t first_step, struct err *e)
{
    char version[] = "brain.Event:2";
    Crun__Events__Event head = CRUN__EVENTS__EVENT__INIT, start = CRUN__EVENTS__EVENT__INIT;
    Crun__Events__SessionLog session = CRUN__EVENTS__SESSION_LOG__INIT;
    head.file_version = version;
    TRY(put_event(t, &head, e));
    session.has_status = 1;
    session.status = 1;
    start.session_log = &session;
    start.has_step = 1;
    start.step = first_step + 1;
    return put_event(t, &start, e);
}

/* The second for a new file's name: TensorBoard reads files in the order of their names, and a run that goes on within
 * the same second, or on a host whose clock is behind, comes after the files that are there. */
static long long next_second(const char *dir)
{
    long long next = (long long)time(NULL), there;
    DIR *d = opendir(dir);
    for (const struct dirent *entry; d && (entry = readdir(d));)
        if (sscanf(entry->d_name, "events.out.tfevents.%10lld.", &there) == 1 && there >= next)
            next = there + 1;
    if (d)
        closedir(d);
    return next;
}

static int create(struct tensorboard *t, const char *dir, struct err *e)
{
    char host[HOST_NAME_MAX + 1] = "localhost";
    if (gethostname(host, sizeof host) < 0)
        strcpy(host, "localhost");
    host[sizeof host - 1] = '\0';
    const long long second = next_second(dir);
    for (int number = 0; number < 1000; number++) {
        if (snprintf(t->path, sizeof t->path, "%s/events.out.tfevents.%lld.%s.%d.%d", dir, second, host, (int)getpid(),
                     number) >= (int)sizeof t->path)
            return err_set(e, -ENAMETOOLONG, "a path is too long: %s", dir);
        t->fd = open(t->path, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666);
        if (t->fd >= 0)
            return 0;
        if (errno != EEXIST)
            break;
    }
    return err_set(e, ERR_OUTPUT, "create %s: %s", t->path, strerror(errno));
}

int tensorboard_open(struct tensorboard **ret, const char *dir, int64_t first_step, struct err *e)
{
    TRY(path_make_writable(dir, e));
    struct tensorboard *t = calloc(1, sizeof *t);
    if (!t)
        return err_set(e, -ENOMEM, "no memory for event files in %s", dir);
    t->fd = -1;
    int rc = create(t, dir, e);
    if (rc == 0)
        rc = put_head(t, first_step, e);
    if (rc < 0) {
        tensorboard_close(t);
        return rc;
    }
    *ret = t;
    return 0;
}

int tensorboard_add(struct tensorboard *t, int64_t step, const struct tensorboard_scalar *v, size_t n, struct err *e)
{
    Crun__Events__Value values[SCALARS_MAX], *list[SCALARS_MAX];
    Crun__Events__Summary summary = CRUN__EVENTS__SUMMARY__INIT;
    Crun__Events__Event event = CRUN__EVENTS__EVENT__INIT;
    summary.value = list;
    for (size_t i = 0; i < n && summary.n_value < SCALARS_MAX; i++) {
        if (!isfinite(v[i].value))
            continue;
        Crun__Events__Value *one = list[summary.n_value] = &values[summary.n_value];
        crun__events__value__init(one);
        one->tag = (char *)(uintptr_t)v[i].tag; /* packed, not changed */
        one->has_simple_value = 1;
        one->simple_value = (float)v[i].value;
        summary.n_value++;
    }
    event.has_step = 1;
    event.step = step;
    event.summary = &summary;
    return put_event(t, &event, e);
}

const char *tensorboard_path(const struct tensorboard *t)
{
    return t->path;
}

void tensorboard_close(struct tensorboard *t)
{
    if (t && t->fd >= 0)
        close(t->fd);
    free(t);
}
