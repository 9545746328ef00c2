/* Stands in for torch_zip_read.c in a build without libzip: says that .pth files cannot be read. */
#include <errno.h>

#include "common/base/err.h"
#include "worker/weights/torch_zip.h"

static int absent(const char *path, struct err *e)
{
    return err_set(e, -ENOTSUP, "%s: this build reads and writes no .pth files: it was made without libzip", path);
}

int torch_zip_open(struct torch_zip **ret, const char *path, const char *part, struct err *e)
{
    (void)ret;
    (void)part;
    return absent(path, e);
}

void torch_zip_close(struct torch_zip *z)
{
    (void)z;
}

size_t torch_zip_count(const struct torch_zip *z)
{
    (void)z;
    return 0;
}

const struct ckpt_tensor *torch_zip_at(const struct torch_zip *z, size_t i)
{
    (void)z;
    (void)i;
    return NULL;
}

const struct pickle *torch_zip_pickle(const struct torch_zip *z)
{
    (void)z;
    return NULL;
}

int torch_zip_read(struct torch_zip *z, size_t i, void *dst, struct err *e)
{
    (void)z;
    (void)i;
    (void)dst;
    return absent("a .pth file", e);
}

int torch_zip_write(const char *path, const struct ckpt_tensor *t, size_t n, struct err *e)
{
    (void)t;
    (void)n;
    return absent(path, e);
}
