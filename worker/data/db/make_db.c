/* Copies a data set, sample by sample, into an LMDB or LevelDB of records. */
#include "worker/data/db/make_db.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/base/log.h"
#include "worker/data/db/db_writer.h"
#include "worker/data/image/image.h"
#include "worker/data/image/jpeg_write.h"
#include "worker/data/image/rng.h"
#include "worker/data/sets/dataset_impl.h"

#define QUALITY 95
#define ROOM_MIN ((uint64_t)64 << 10) /* bytes; a disk with less is full */
#define TOLD_EACH 10000               /* pictures */

struct maker {
    const struct make_db_options *o;
    struct dataset *src;
    struct db_writer *writer;
    struct buf file, record, jpeg;
    struct make_db_result r;
    int64_t shown_ms;
    char dst[PATH_MAX];  /* without a slash at its end */
    char part[PATH_MAX]; /* written beside dst and renamed */
    int lock_fd;         /* of it, while this process lives; -1: none */
};

/* --- one record */

static bool is_pixels(const struct buf *file)
{
    return file->len >= 2 && file->data[0] == 'P' && (file->data[1] == '5' || file->data[1] == '6');
}

static int shorten(struct image *im, int side, struct err *e)
{
    int64_t w = side, h = side;
    if (im->w < im->h)
        h = (int64_t)side * im->h / im->w;
    else
        w = (int64_t)side * im->w / im->h;
    if (w > 65500 || h > 65500)
        return err_set(e, ERR_DATA, "an image of %d x %d pixels is too long to be resized to %d", im->w, im->h, side);
    struct image small = {.px = malloc((size_t)w * (size_t)h * (size_t)im->c), .w = (int)w, .h = (int)h, .c = im->c};
    int rc = small.px ? image_resize(im, 0, 0, im->w, im->h, small.w, small.h, false, small.px, e)
                      : err_set(e, -ENOMEM, "no memory for an image of %d x %d pixels", small.w, small.h);
    if (rc < 0) {
        image_free(&small);
        return rc;
    }
    image_free(im);
    *im = small;
    return 0;
}

static int record_of_image(struct maker *m, struct image *im, int label, struct err *e)
{
    const struct make_db_options *o = m->o;
    if (o->resize)
        TRY(shorten(im, o->resize, e));
    if (o->raw || is_pixels(&m->file))
        return record_write_raw(o->format, im, label, &m->record, e);
    buf_clear(&m->jpeg);
    TRY(jpeg_write(im->px, im->w, im->h, im->c, QUALITY, &m->jpeg, e));
    return record_write_encoded(o->format, m->jpeg.data, m->jpeg.len, label, &m->record, e);
}

/* A file's bytes go in as they are where nothing asks for its pixels; it is decoded all the same, so that no damaged
 * one gets in. */
static int make_record(struct maker *m, size_t i, struct err *e)
{
    const struct make_db_options *o = m->o;
    struct image im = {0};
    int label = 0;
    buf_clear(&m->file);
    buf_clear(&m->record);
    TRY(m->src->ops->read(m->src, i, &m->file, &label, e));
    const bool grey = o->grey || (m->file.len >= 2 && is_pixels(&m->file) && m->file.data[1] == '5');
    TRY(image_decode(m->file.data, m->file.len, grey ? 1 : 3, &im, e));
    int rc;
    if (o->raw || o->resize || o->grey || is_pixels(&m->file))
        rc = record_of_image(m, &im, label, e);
    else
        rc = record_write_encoded(o->format, m->file.data, m->file.len, label, &m->record, e);
    image_free(&im);
    return rc;
}

size_t make_db_key(char key[MAKE_DB_KEY_MAX], size_t place, size_t n, const char *name)
{
    int digits = 8;
    for (size_t most = 100000000; n > most && digits < 20; most *= 10)
        digits++;
    const int len = snprintf(key, MAKE_DB_KEY_MAX, "%0*zu_%s", digits, place, name);
    return len < MAKE_DB_KEY_MAX ? (size_t)len : MAKE_DB_KEY_MAX - 1;
}

/* Its name in the source. */
static const char *name_of(const struct maker *m, size_t i)
{
    const char *name = m->src->ops->sample_name(m->src, i), *src = m->o->src;
    if (strncmp(name, src, strlen(src)) == 0)
        for (name += strlen(src); *name == '/'; name++)
            ;
    return name;
}

/* On a terminal a line that changes each second, elsewhere one each so many pictures. */
static void tell_progress(struct maker *m, size_t done, size_t n)
{
    const bool terminal = isatty(STDERR_FILENO);
    const int64_t now = clock_ms();
    if (terminal ? now - m->shown_ms < 1000 && done < n : done % TOLD_EACH != 0)
        return;
    m->shown_ms = now;
    fprintf(stderr, "%s%zu of %zu pictures%s", terminal ? "\r" : "", done, n, !terminal || done == n ? "\n" : "");
}

/* Says where, and whether for want of room: LMDB calls a write that was cut short an I/O error. */
static int cannot_write(const struct maker *m, struct err *e)
{
    struct statvfs fs;
    if (e->code == -ENOMEM)
        return e->code;
    const bool full = statvfs(m->part, &fs) == 0 && fs.f_blocks > 0 && (uint64_t)fs.f_bavail * fs.f_frsize < ROOM_MIN;
    if (full || e->code == -ENOSPC)
        return err_set(e, ERR_OUTPUT, "cannot write '%s': %s", m->dst, strerror(ENOSPC));
    return err_wrap(e, "cannot make '%s'", m->dst);
}

static int put_one(struct maker *m, size_t place, size_t n, size_t i, struct err *e)
{
    char key[MAKE_DB_KEY_MAX];
    int rc = make_record(m, i, e);
    if (rc == ERR_DATA && !m->o->strict) {
        log_warn("make-db", "'%s' is left out: %s", m->src->ops->sample_name(m->src, i), e->text);
        m->r.left_out++;
        return 0;
    }
    if (rc < 0)
        return err_wrap(e, "'%s'", m->src->ops->sample_name(m->src, i));
    const size_t key_n = make_db_key(key, place, n, name_of(m, i));
    rc = m->writer->ops->put(m->writer, key, key_n, m->record.data, m->record.len, e);
    if (rc < 0)
        return cannot_write(m, e);
    m->r.written++;
    m->r.bytes += m->record.len;
    return 0;
}

static int put_all(struct maker *m, const uint32_t *order, struct err *e)
{
    const size_t n = m->o->limit > 0 && m->o->limit < m->src->n ? m->o->limit : m->src->n;
    for (size_t place = 0; place < n; place++) {
        TRY(put_one(m, place, n, order[place], e));
        tell_progress(m, place + 1, n);
    }
    return m->r.written > 0 ? 0 : err_set(e, ERR_DATA, "'%s' holds no picture that can be read", m->o->src);
}

/* --- the folder */

static void remove_flat(const char *dir)
{
    char path[PATH_MAX];
    DIR *d = opendir(dir);
    for (struct dirent *entry; d && (entry = readdir(d));)
        if (snprintf(path, sizeof path, "%s/%s", dir, entry->d_name) < (int)sizeof path)
            unlink(path);
    if (d)
        closedir(d);
    rmdir(dir);
}

static int write_classes(const struct maker *m, const char *dir, struct err *e)
{
    char path[PATH_MAX + sizeof "/" DATASET_CLASSES_FILE];
    snprintf(path, sizeof path, "%s/" DATASET_CLASSES_FILE, dir);
    FILE *f = fopen(path, "wxe");
    if (!f)
        return err_set(e, ERR_OUTPUT, "cannot write '%s': %s", path, strerror(errno));
    for (int i = 0; i < m->src->classes; i++)
        fprintf(f, "%s\n", m->src->class_names[i]);
    const bool bad = fflush(f) != 0 || fsync(fileno(f)) != 0;
    const int code = errno;
    fclose(f);
    return bad ? err_set(e, ERR_OUTPUT, "cannot write '%s': %s", path, strerror(code)) : 0;
}

/* classes.txt holds a name in a line. */
static int check_classes(const struct maker *m, struct err *e)
{
    for (int i = 0; i < m->src->classes; i++) {
        const char *name = m->src->class_names[i];
        const size_t line = strcspn(name, "\r\n");
        if (name[line])
            return err_set(e, ERR_DATA,
                           "a class of '%s' has a line break in its name, behind '%.*s': rename it, as the names of "
                           "classes become lines of " DATASET_CLASSES_FILE,
                           m->o->src, (int)line, name);
    }
    return 0;
}

static int choose_order(const struct maker *m, uint32_t **ret, struct err *e)
{
    const size_t n = m->src->n;
    uint32_t *order = n <= UINT32_MAX ? malloc(n * sizeof *order) : NULL;
    if (!order)
        return err_set(e, -ENOMEM, "no memory for the order of %zu pictures", n);
    for (size_t i = 0; i < n; i++)
        order[i] = (uint32_t)i;
    struct rng r = rng_stream(m->o->seed, RNG_RECORDS, 0, 0);
    for (size_t i = n; m->o->shuffle && i > 1; i--) {
        const size_t j = (size_t)rng_below(&r, i);
        const uint32_t swap = order[i - 1];
        order[i - 1] = order[j];
        order[j] = swap;
    }
    *ret = order;
    return 0;
}

/* Is it one of dst's, whose process is gone? Then nobody holds its lock (on another machine), and the number in its
 * name is nobody's. */
static bool is_left_over(const char *path, const char *number)
{
    char *end;
    const long pid = strtol(number, &end, 10);
    if (end == number || strcmp(end, ".part") != 0 || pid <= 0 || kill((pid_t)pid, 0) == 0 || errno != ESRCH)
        return false;
    const int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    const bool mine = fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0;
    if (fd >= 0)
        close(fd);
    return mine;
}

/* What a killed make-db of the same dst has left. */
static void remove_left_overs(const char *dst)
{
    char dir[PATH_MAX], path[PATH_MAX];
    const char *slash = strrchr(dst, '/'), *name = slash ? slash + 1 : dst;
    snprintf(dir, sizeof dir, "%.*s", slash ? (int)(slash - dst) + 1 : 1, slash ? dst : ".");
    DIR *d = *name ? opendir(dir) : NULL;
    for (struct dirent *entry; d && (entry = readdir(d));) {
        const size_t n = strlen(name);
        if (strncmp(entry->d_name, name, n) != 0 || entry->d_name[n] != '.' ||
            snprintf(path, sizeof path, "%s/%s", dir, entry->d_name) >= (int)sizeof path ||
            !is_left_over(path, entry->d_name + n + 1))
            continue;
        log_warn("make-db", "'%s' was left by a make-db that was killed, and is removed", path);
        remove_flat(path);
    }
    if (d)
        closedir(d);
}

static int open_writer(struct maker *m, struct err *e)
{
    if (m->o->writer->open(&m->writer, m->part, e) < 0)
        return cannot_write(m, e);
    m->lock_fd = open(m->part, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (m->lock_fd >= 0)
        flock(m->lock_fd, LOCK_EX | LOCK_NB); /* nobody else knows it yet */
    return 0;
}

static int write_records(struct maker *m, struct err *e)
{
    uint32_t *order = NULL;
    TRY(choose_order(m, &order, e));
    int rc = open_writer(m, e);
    if (rc == 0)
        rc = put_all(m, order, e);
    if (rc == 0 && m->writer->ops->finish(m->writer, e) < 0)
        rc = cannot_write(m, e);
    if (m->writer)
        m->writer->ops->close(m->writer);
    free(order);
    return rc == 0 ? write_classes(m, m->part, e) : rc;
}

int make_db(const struct make_db_options *o, struct make_db_result *ret, struct err *e)
{
    struct maker m = {.o = o, .lock_fd = -1};
    struct stat st;
    size_t n = strlen(o->dst);
    while (n > 1 && o->dst[n - 1] == '/')
        n--;
    if (snprintf(m.dst, sizeof m.dst, "%.*s", (int)n, o->dst) >= (int)sizeof m.dst ||
        snprintf(m.part, sizeof m.part, "%s.%ld.part", m.dst, (long)getpid()) >= (int)sizeof m.part)
        return err_set(e, ERR_OUTPUT, "'%.200s...': the name is too long", o->dst);
    remove_left_overs(m.dst);
    if (lstat(m.dst, &st) == 0)
        return err_set(e, ERR_OUTPUT, "'%s' exists already", m.dst);
    TRY(dataset_open(&m.src, o->src, &o->source, e));
    if (m.src->left_out)
        log_warn("make-db", "'%s': %s", o->src, m.src->left_out);
    int rc = check_classes(&m, e);
    if (rc == 0)
        rc = write_records(&m, e);
    if (rc == 0 && rename(m.part, m.dst) < 0)
        rc = err_set(e, ERR_OUTPUT, "cannot make '%s': %s", m.dst, strerror(errno));
    if (rc < 0)
        remove_flat(m.part);
    if (m.lock_fd >= 0)
        close(m.lock_fd);
    dataset_close(m.src);
    buf_free(&m.file);
    buf_free(&m.record);
    buf_free(&m.jpeg);
    *ret = m.r;
    return rc;
}
