/* What a path holds that no reader takes, in a sentence: what it is, what was expected, and what would help. */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/err.h"
#include "common/base/file.h"
#include "worker/data/image/first_bytes.h"
#include "worker/data/sets/dataset_impl.h"

#define HEAD 512

/* The first bytes of a regular file, at most HEAD; 0: of nothing else, or of one that cannot be read. */
static size_t read_head(const char *path, uint8_t out[HEAD])
{
    if (!dataset_is_file(path))
        return 0;
    const int fd = file_open_regular(path, ERR_DATA, NULL);
    const ssize_t n = fd >= 0 ? read(fd, out, HEAD) : 0;
    if (fd >= 0)
        close(fd);
    return n > 0 ? (size_t)n : 0;
}

static bool is_kind(const char *path, const char *kind)
{
    uint8_t head[HEAD];
    char what[FIRST_BYTES_TEXT];
    const size_t n = read_head(path, head);
    return n > 0 && strcmp(first_bytes_text(head, n, what), kind) == 0;
}

bool dataset_is_lmdb_file(const char *path)
{
    return is_kind(path, "an LMDB");
}

/* What would help with a file of this kind. */
static const char *remedy(const char *what)
{
    static const struct {
        const char *what, *remedy;
    } remedies[] = {
        {"a zip file", "unpack it and give the folder; an .npz of arrays: write its pictures as files"},
        {"a gzip file", "unpack it (tar xzf, gunzip) and give what comes of it"},
        {"an xz file", "unpack it (tar xJf, unxz) and give what comes of it"},
        {"a bzip2 file", "unpack it (tar xjf, bunzip2) and give what comes of it"},
        {"a zstd file", "unpack it (zstd -d) and give what comes of it"},
        {"a tar file", "name it .tar"},
        {"a Parquet file", "write its pictures as files: DIR/<class>/<image>"},
        {"a NumPy array", "write its pictures as files: DIR/<class>/<image>"},
        {"an HDF5 file", "write its pictures as files: DIR/<class>/<image>"},
        {"a pointer of Git LFS", "git lfs pull"},
        {"HTML", "the download went wrong"},
    };
    for (size_t i = 0; i < sizeof remedies / sizeof *remedies; i++)
        if (strcmp(remedies[i].what, what) == 0)
            return remedies[i].remedy;
    return "give a folder, DIR/<class>/<image>";
}

int dataset_explain_file(const char *path, struct err *e)
{
    uint8_t head[HEAD];
    char what[FIRST_BYTES_TEXT];
    if (!dataset_is_file(path))
        return err_set(e, ERR_DATA, "'%s' is neither a folder nor a file: give a folder, DIR/<class>/<image>", path);
    first_bytes_text(head, read_head(path, head), what);
    return err_set(e, ERR_DATA, "'%s' is %s, and no data set: %s", path, what, remedy(what));
}

int dataset_explain_folder(const char *dir, size_t pictures, const char *other, struct err *e)
{
    uint8_t head[HEAD];
    char path[4096], what[FIRST_BYTES_TEXT];
    if (pictures > 0)
        return err_set(
            e, ERR_DATA,
            "'%s' holds %zu picture%s itself, and no class folders (expected: %s/<class>/<image>): put them "
            "into a folder for each class; for ImageNet's validation set trainer make-data imagenet-val does",
            dir, pictures, pictures == 1 ? "" : "s", dir);
    if (!other || snprintf(path, sizeof path, "%s/%s", dir, other) >= (int)sizeof path || !dataset_is_file(path))
        return err_set(e, ERR_DATA, "'%s' holds no class folders (expected: %s/<class>/<image>)", dir, dir);
    first_bytes_text(head, read_head(path, head), what);
    return err_set(e, ERR_DATA, "'%s' holds no class folders (expected: %s/<class>/<image>); its file '%s' is %s: %s",
                   dir, dir, other, what, remedy(what));
}
