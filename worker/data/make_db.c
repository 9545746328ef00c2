#include "worker/data/make_db.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/clock.h"
#include "common/err.h"
#include "common/log.h"
#include "worker/data/dataset_impl.h"
#include "worker/data/db_writer.h"
#include "worker/data/image.h"
#include "worker/data/jpeg_write.h"
#include "worker/data/rng.h"

#define QUALITY 95
#define KEY_MAX 255 /* LMDB takes keys of up to 511 bytes */

struct maker {
    const struct make_db_options *o;
    struct dataset *src;
    struct db_writer *writer;
    struct buf file, record, jpeg;
    struct make_db_result r;
    int64_t told_ms;
};

/* --- one record ----------------------------------------------------------------------------------------------------- */

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

/* A file's bytes go in as they are where nothing asks for its pixels; it is decoded all the same, so that no damaged one gets in. */
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

static size_t make_key(const struct maker *m, size_t place, size_t i, char *key)
{
    const char *name = m->src->ops->sample_name(m->src, i), *src = m->o->src;
    const size_t n = strlen(src);
    if (strncmp(name, src, n) == 0)
        for (name += n; *name == '/'; name++)
            ;
    int len = snprintf(key, KEY_MAX, "%08zu_%s", place, name);
    return len < KEY_MAX ? (size_t)len : KEY_MAX - 1;
}

static void tell(struct maker *m, size_t done)
{
    const int64_t now = clock_ms();
    if (!isatty(STDERR_FILENO) || (now - m->told_ms < 1000 && done < m->src->n))
        return;
    m->told_ms = now;
    fprintf(stderr, "\r%zu of %zu pictures%s", done, m->src->n, done == m->src->n ? "\n" : "");
}

static int put_all(struct maker *m, const uint32_t *order, struct err *e)
{
    char key[KEY_MAX];
    for (size_t place = 0; place < m->src->n; place++) {
        const size_t i = order[place];
        int rc = make_record(m, i, e);
        if (rc == ERR_DATA && !m->o->strict) {
            log_warn("make-db", "'%s' is left out: %s", m->src->ops->sample_name(m->src, i), e->text);
            m->r.left_out++;
            continue;
        }
        if (rc < 0)
            return err_wrap(e, "'%s'", m->src->ops->sample_name(m->src, i));
        const size_t key_n = make_key(m, place, i, key);
        TRY(m->writer->ops->put(m->writer, key, key_n, m->record.data, m->record.len, e));
        m->r.written++;
        m->r.bytes += m->record.len;
        tell(m, place + 1);
    }
    return m->r.written > 0 ? 0 : err_set(e, ERR_DATA, "'%s' holds no picture that can be read", m->o->src);
}

/* --- the folder ----------------------------------------------------------------------------------------------------- */

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

static int fill(struct maker *m, const char *part, struct err *e)
{
    uint32_t *order = NULL;
    TRY(choose_order(m, &order, e));
    int rc = m->o->writer->open(&m->writer, part, e);
    if (rc == 0)
        rc = put_all(m, order, e);
    if (rc == 0)
        rc = m->writer->ops->finish(m->writer, e);
    if (m->writer)
        m->writer->ops->close(m->writer);
    free(order);
    return rc == 0 ? write_classes(m, part, e) : rc;
}

int make_db(const struct make_db_options *o, struct make_db_result *ret, struct err *e)
{
    struct maker m = {.o = o};
    struct stat st;
    char part[PATH_MAX];
    if (snprintf(part, sizeof part, "%s.%ld.part", o->dst, (long)getpid()) >= (int)sizeof part)
        return err_set(e, ERR_OUTPUT, "'%.200s...': the name is too long", o->dst);
    if (lstat(o->dst, &st) == 0)
        return err_set(e, ERR_OUTPUT, "'%s' exists already", o->dst);
    TRY(dataset_open(&m.src, o->src, &o->source, e));
    int rc = fill(&m, part, e);
    if (rc == 0 && rename(part, o->dst) < 0)
        rc = err_set(e, ERR_OUTPUT, "cannot make '%s': %s", o->dst, strerror(errno));
    if (rc < 0)
        remove_flat(part);
    dataset_close(m.src);
    buf_free(&m.file);
    buf_free(&m.record);
    buf_free(&m.jpeg);
    *ret = m.r;
    return rc;
}
