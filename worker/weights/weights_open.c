/* Which kind of file of weights it is: by its first bytes, not by its name. */
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/err.h"
#include "common/base/file.h"
#include "worker/ckpt/ckpt.h"
#include "worker/ckpt/pointer.h"
#include "worker/data/image/first_bytes.h"
#include "worker/weights/llmc_read.h"
#include "worker/weights/pickle_read.h"
#include "worker/weights/shards.h"
#include "worker/weights/torch_old.h"
#include "worker/weights/torch_zip.h"
#include "worker/weights/weights_impl.h"

#define SOURCE(kind)                                                                                                   \
    static void close_##kind(void *of)                                                                                 \
    {                                                                                                                  \
        kind##_close(of);                                                                                              \
    }                                                                                                                  \
    static size_t count_##kind(const void *of)                                                                         \
    {                                                                                                                  \
        return kind##_count(of);                                                                                       \
    }                                                                                                                  \
    static const struct ckpt_tensor *at_##kind(const void *of, size_t i)                                               \
    {                                                                                                                  \
        return kind##_at(of, i);                                                                                       \
    }                                                                                                                  \
    static int read_##kind(void *of, size_t i, void *dst, struct err *e)                                               \
    {                                                                                                                  \
        return kind##_read(of, i, dst, e);                                                                             \
    }                                                                                                                  \
    static const struct source source_##kind = {close_##kind, count_##kind, at_##kind, read_##kind}

static int bare_read(struct safetensors *s, size_t i, void *dst, struct err *e)
{
    return safetensors_read(s, i, dst, NULL, e);
}
#define bare_close safetensors_close
#define bare_count safetensors_count
#define bare_at safetensors_at

SOURCE(bare);
SOURCE(shards);
SOURCE(torch_zip);
SOURCE(torch_old);
SOURCE(llmc);

static int open_checkpoint(struct weights *w, const char *path, struct err *e)
{
    char dir[PATH_MAX];
    int64_t step;
    TRY(ckpt_locate(path, dir, &step, e));
    if (step < 0)
        TRY(ckpt_latest(dir, &step, e));
    TRY(ckpt_open(&w->ckpt, dir, step, e));
    w->source = &source_bare;
    w->of = ckpt_file(w->ckpt, "model");
    return 0;
}

#define HEAD 512 /* bytes of a file that say what it is */

/* What people give instead of weights, and what would help. */
static const char *remedy(const char *what)
{
    static const struct {
        const char *what, *remedy;
    } remedies[] = {
        {"a pointer of Git LFS", ": git lfs pull gets the file itself"},
        {"HTML", ": the download went wrong, this is a page that a server sent instead"},
        {"a gzip file", ": unpack it (gunzip)"},
        {"an xz file", ": unpack it (unxz)"},
        {"a bzip2 file", ": unpack it (bunzip2)"},
        {"a zstd file", ": unpack it (zstd -d)"},
        {"a tar file", ": unpack it (tar xf)"},
        {"a pickled object", ": load it in Python and torch.save() the state_dict"},
        {"an HDF5 file", ": load it in Python and torch.save() the state_dict"},
        {"a NumPy array", ": load it in Python and torch.save() a dict of tensors"},
    };
    for (size_t i = 0; i < sizeof remedies / sizeof *remedies; i++)
        if (strcmp(remedies[i].what, what) == 0)
            return remedies[i].remedy;
    return "";
}

/* What it is by its first bytes, or these. */
static int is_none(const char *path, const unsigned char *head, size_t n, struct err *e)
{
    char bytes[4 * 3 + 1] = "", what[FIRST_BYTES_TEXT];
    if (n > 0 && strncmp(first_bytes_text(head, n, what), "bytes", 5) != 0)
        return err_set(e, ERR_CORRUPT,
                       "%s is no file of weights: expected .safetensors, a .pth or .pt that torch.save() wrote, or "
                       "llm.c's .bin; it is %s%s",
                       path, what, remedy(what));
    for (size_t i = 0; i < n && i < 4; i++)
        snprintf(bytes + 3 * i, sizeof bytes - 3 * i, " %02x", head[i]);
    return err_set(e, ERR_CORRUPT,
                   "%s is no file of weights: expected .safetensors, a .pth or .pt that torch.save() wrote, or llm.c's "
                   ".bin; it %s%s",
                   path, n == 0 ? "is empty" : "begins with the bytes", bytes);
}

static bool has_suffix(const char *s, const char *suffix)
{
    const size_t n = strlen(s), m = strlen(suffix);
    return n > m && strcmp(s + n - m, suffix) == 0;
}

#define OPEN(kind, ...)                                                                                                \
    do {                                                                                                               \
        struct kind *of_ = NULL;                                                                                       \
        TRY(kind##_open(&of_, __VA_ARGS__, e));                                                                        \
        w->source = &source_##kind;                                                                                    \
        w->of = of_;                                                                                                   \
    } while (0)

static int open_torch(struct weights *w, bool old, const char *path, const char *part, struct err *e)
{
    if (old)
        OPEN(torch_old, path, part);
    else
        OPEN(torch_zip, path, part);
    w->pickle = old ? torch_old_pickle(w->of) : torch_zip_pickle(w->of);
    w->passed_over = w->pickle->passed_over;
    w->passed = w->pickle->passed;
    return 0;
}

int weights_open_file(struct weights *w, const char *path, const char *part, struct err *e)
{
    unsigned char head[HEAD] = {0};
    FILE *f = NULL;
    struct safetensors *file = NULL;
    TRY(file_stream_regular(&f, path, ERR_CORRUPT, e));
    size_t n = fread(head, 1, sizeof head, f);
    const int failed = ferror(f) ? errno : 0;
    fclose(f);
    if (failed)
        return err_errno(e, failed, "read %s", path);
    if (n >= 4 && memcmp(head, "PK\3\4", 4) == 0)
        return open_torch(w, false, path, part, e);
    if (pickle_is_old(head, n))
        return open_torch(w, true, path, part, e);
    if (llmc_is(head, n)) {
        OPEN(llmc, path);
        return 0;
    }
    if (n > 0 && head[0] == '{' && has_suffix(path, ".json")) {
        OPEN(shards, path);
        return 0;
    }
    if (n < 9 || head[8] != '{') /* 8 bytes of length, then JSON */
        return is_none(path, head, n, e);
    TRY(safetensors_open(&file, path, e));
    w->source = &source_bare;
    w->of = file;
    w->passed_over = safetensors_passed_over(file, &w->passed);
    return 0;
}

static bool is_in(const char *dir, const char *name, char file[PATH_MAX])
{
    return snprintf(file, PATH_MAX, "%s/%s", dir, name) < PATH_MAX && access(file, F_OK) == 0;
}

/* The file of weights by the names that Hugging Face's folders have for it. */
static bool has_bare_file(const char *dir, char file[PATH_MAX])
{
    static const char *const names[] = {"model.safetensors", "model.safetensors.index.json", "pytorch_model.bin",
                                        "pytorch_model.bin.index.json"};
    for (int i = 0; !is_in(dir, "manifest.json", file) && i < (int)(sizeof names / sizeof *names); i++)
        if (is_in(dir, names[i], file))
            return true;
    return false;
}

/* The first name in the folder, in byte order, that ends so; false: none. */
static bool find_suffix(const char *dir, const char *suffix, char ret[NAME_MAX + 1])
{
    DIR *d = opendir(dir);
    ret[0] = '\0';
    for (struct dirent *f; d && (f = readdir(d));)
        if (has_suffix(f->d_name, suffix) && (!ret[0] || strcmp(f->d_name, ret) < 0))
            snprintf(ret, NAME_MAX + 1, "%s", f->d_name);
    if (d)
        closedir(d);
    return ret[0] != '\0';
}

/* *e says that the folder is no checkpoint. What of it would do? */
static int name_file(const char *dir, int rc, struct err *e)
{
    const struct err why = *e;
    char name[NAME_MAX + 1], file[PATH_MAX];
    if (has_bare_file(dir, file))
        return err_set(e, rc,
                       "'%.300s' lacks config.json, which says of which model its %s is: add it, or give that file, "
                       "%.400s, with --arch",
                       dir, strrchr(file, '/') + 1, file);
    if (!find_suffix(dir, ".index.json", name) && !find_suffix(dir, ".safetensors", name) &&
        !find_suffix(dir, ".pth", name) && !find_suffix(dir, ".bin", name))
        return rc;
    return err_set(e, rc, "%.400s; it holds '%.200s': give that file, %.300s/%.200s", why.text, name, dir, name);
}

int weights_open_path(struct weights *w, const char *path, const char *part, struct err *e)
{
    struct stat st;
    char file[PATH_MAX];
    int rc = 0;
    if (stat(path, &st) < 0)
        return err_set(e, ERR_USAGE, "no weights found at '%s': %s", path, strerror(errno));
    if (S_ISDIR(st.st_mode) && is_in(path, "config.json", file) && has_bare_file(path, file))
        rc = weights_open_file(w, file, part, e);
    else if (S_ISDIR(st.st_mode) || pointer_read(path) >= 0)
        rc = open_checkpoint(w, path, e);
    else
        rc = weights_open_file(w, path, part, e);
    if (rc == ERR_USAGE && S_ISDIR(st.st_mode))
        rc = name_file(path, rc, e);
    TRY(rc);
    w->n = w->source->count(w->of);
    return 0;
}
