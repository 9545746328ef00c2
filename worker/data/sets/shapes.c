/* The shapes data set as files.
 *
 * Life: DIR is made, DIR/dataset.json.part is written with the options, then DIR/{train,val}/<class>/<index>.jpg, each
 * under a temporary name that is renamed when it is whole; at the end dataset.json.part becomes dataset.json. What can
 * go wrong:
 *   - killed half-way: the pictures there are whole, the next run with the same options draws the others;
 *   - DIR holds a set with other options, finished or not: refused, naming the first option that differs;
 *   - DIR holds something else: refused, nothing is mixed into it;
 *   - DIR cannot be written: the error names the path. */
#include "worker/data/sets/shapes.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/base/file.h"
#include "worker/data/image/jpeg_write.h"

#define QUALITY 90

/* Everything that decides the bytes, in the order written; "drawing" counts changes of shapes_draw(). */
#define FACTS(X)                                                                                                       \
    X("drawing", 1)                                                                                                    \
    X("classes", o->classes)                                                                                           \
    X("train-images", o->train_images)                                                                                 \
    X("test-images", o->test_images)                                                                                   \
    X("image-size", o->image_size)                                                                                     \
    X("seed", o->seed)

static int make_dir(const char *path, struct err *e)
{
    struct stat st;
    if (mkdir(path, 0777) == 0)
        return 0;
    int code = errno;
    if (code == EEXIST && stat(path, &st) == 0) {
        if (S_ISDIR(st.st_mode))
            return 0;
        code = ENOTDIR;
    }
    return err_errno(e, code, "cannot make the folder '%s'", path);
}

/* The folder and those above it. */
static int make_dirs(const char *path, struct err *e)
{
    char part[PATH_MAX];
    for (const char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        snprintf(part, sizeof part, "%.*s", (int)(slash - path), path);
        TRY(make_dir(part, e));
    }
    return make_dir(path, e);
}

/* Write under a temporary name, then rename: what stands under `path` is whole. */
static int write_file(const char *path, const void *data, size_t n, struct err *e)
{
    char part[PATH_MAX];
    if (snprintf(part, sizeof part, "%s.%ld~", path, (long)getpid()) >= (int)sizeof part)
        return err_set(e, -ENAMETOOLONG, "the path '%.100s...' is too long", path);
    unlink(part); /* of a process that was killed */
    FILE *f = fopen(part, "wxbe");
    if (!f)
        return err_errno(e, errno, "cannot write '%s'", path);
    errno = 0;
    bool ok = fwrite(data, 1, n, f) == n;
    if (fclose(f) != 0 || !ok || rename(part, path) != 0) {
        int code = errno ? errno : EIO;
        unlink(part);
        return err_errno(e, code, "cannot write '%s'", path);
    }
    return 0;
}

static void describe(const struct shapes_options *o, struct buf *out)
{
    buf_addstr(out, "{\n  \"kind\": \"shapes\"");
#define X(name, value) buf_printf(out, ",\n  \"%s\": %" PRIu64, name, (uint64_t)(value));
    FACTS(X)
#undef X
    buf_addstr(out, "\n}\n");
}

/* Does the description at `path` tell of the same options? 1 yes, 0 no such file. Only our own writing is read, so a
 * search is enough. */
static int same_set(const char *path, const struct shapes_options *o, struct err *e)
{
    char text[1024], key[64];
    FILE *f = NULL;
    const int rc = file_stream_regular(&f, path, ERR_USAGE, e);
    if (rc < 0)
        return rc == -ENOENT ? 0 : rc;
    size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    text[n] = '\0';
    if (!strstr(text, "\"kind\": \"shapes\""))
        return err_set(e, ERR_USAGE, "'%s' does not describe a shapes data set; choose another --out", path);
#define X(name, value)                                                                                                 \
    {                                                                                                                  \
        snprintf(key, sizeof key, "\"%s\": ", name);                                                                   \
        const char *at = strstr(text, key);                                                                            \
        uint64_t has = at ? strtoull(at + strlen(key), NULL, 10) : 0;                                                  \
        if (!at || has != (uint64_t)(value))                                                                           \
            return err_set(e, ERR_USAGE,                                                                               \
                           "'%s' holds a data set made with %s %" PRIu64 ", not %" PRIu64                              \
                           "; choose another --out or remove it",                                                      \
                           o->out, name, has, (uint64_t)(value));                                                      \
    }
    FACTS(X)
#undef X
    return 1;
}

static int draw_file(const struct shapes_options *o, int index, const char *path, uint8_t *px, struct buf *jpeg,
                     struct err *e)
{
    struct stat st;
    if (stat(path, &st) == 0 && st.st_size > 0)
        return 0;
    buf_clear(jpeg);
    shapes_draw(index % o->classes, o->seed, (uint64_t)index, o->image_size, px);
    TRY(jpeg_write(px, o->image_size, o->image_size, 3, QUALITY, jpeg, e));
    return write_file(path, jpeg->data, jpeg->len, e);
}

struct progress {
    bool terminal;
    int64_t shown_ms;
};

static void show(struct progress *p, int done, int total)
{
    int64_t now = clock_ms();
    bool last = done == total;
    if (!last && now - p->shown_ms < (p->terminal ? 100 : 5000))
        return;
    p->shown_ms = now;
    fprintf(stderr,
            p->terminal && !last ? "\r%d of %d images"
            : p->terminal        ? "\r%d of %d images\n"
                                 : "%d of %d images\n",
            done, total);
}

static int draw_all(const struct shapes_options *o, uint8_t *px, struct buf *jpeg, struct err *e)
{
    struct progress p = {.terminal = isatty(STDERR_FILENO), .shown_ms = clock_ms()};
    char path[PATH_MAX];
    int total = o->train_images + o->test_images;
    for (int i = 0; i < total; i++) {
        const char *part = i < o->train_images ? "train" : "val";
        snprintf(path, sizeof path, "%s/%s/%s/%08d.jpg", o->out, part, shapes_class_name(i % o->classes), i);
        TRY(draw_file(o, i, path, px, jpeg, e));
        show(&p, i + 1, total);
    }
    return 0;
}

static int make_folders(const struct shapes_options *o, struct err *e)
{
    static const char *const parts[] = {"train", "val"};
    char path[PATH_MAX];
    for (int p = 0; p < 2; p++)
        for (int k = -1; k < o->classes; k++) {
            snprintf(path, sizeof path, "%s/%s/%s", o->out, parts[p], k < 0 ? "" : shapes_class_name(k));
            if (k < 0)
                path[strlen(path) - 1] = '\0';
            TRY(make_dir(path, e));
        }
    return 0;
}

/* 1: the set is finished already; 0: go on. */
static int look_for_earlier(const struct shapes_options *o, const char *done, const char *part, struct err *e)
{
    int rc = same_set(done, o, e);
    if (rc != 0)
        return rc;
    TRY(make_dirs(o->out, e));
    rc = same_set(part, o, e);
    if (rc < 0)
        return rc;
    if (rc == 0) {
        char path[PATH_MAX];
        static const char *const taken[] = {"train", "val"};
        for (int i = 0; i < 2; i++) {
            snprintf(path, sizeof path, "%s/%s", o->out, taken[i]);
            if (access(path, F_OK) == 0)
                return err_set(e, ERR_USAGE, "'%s' exists and was not made by make-data; choose another --out", path);
        }
        struct buf text = {0};
        describe(o, &text);
        rc = write_file(part, text.data, text.len, e);
        buf_free(&text);
        TRY(rc);
    }
    return make_folders(o, e);
}

int shapes_make(const struct shapes_options *o, struct err *e)
{
    char done[PATH_MAX], part[PATH_MAX];
    if (!o->out || !*o->out || strlen(o->out) > PATH_MAX - 64)
        return err_set(e, ERR_USAGE, "--out needs the path of a folder");
    if (o->classes < 2 || o->classes > SHAPES_MAX_CLASSES || o->image_size < 16 || o->image_size > 512)
        return err_set(e, ERR_USAGE, "%d classes of %d pixels: 2 to %d and 16 to 512 can be drawn", o->classes,
                       o->image_size, SHAPES_MAX_CLASSES);
    if (o->train_images < o->classes || o->test_images < o->classes || o->train_images > 10000000 ||
        o->test_images > 10000000)
        return err_set(e, ERR_USAGE, "%d training and %d test images: each needs one a class (%d) and at most 10000000",
                       o->train_images, o->test_images, o->classes);
    snprintf(done, sizeof done, "%s/dataset.json", o->out);
    snprintf(part, sizeof part, "%s/dataset.json.part", o->out);
    int rc = look_for_earlier(o, done, part, e);
    if (rc != 0)
        return rc < 0 ? rc : 0;
    uint8_t *px = malloc((size_t)o->image_size * (size_t)o->image_size * 3);
    struct buf jpeg = {0};
    rc = px ? draw_all(o, px, &jpeg, e) : err_set(e, -ENOMEM, "no memory for a picture");
    if (rc == 0 && rename(part, done) != 0)
        rc = err_errno(e, errno, "cannot write '%s'", done);
    free(px);
    buf_free(&jpeg);
    return rc;
}
