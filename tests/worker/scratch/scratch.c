#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/worker/scratch/scratch.h"

#include <dirent.h>
#include <ftw.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int scratch_make(void **state)
{
    const char *base = getenv("TMPDIR");
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/crun-test-XXXXXX", base && base[0] ? base : "/tmp");
    if (!mkdtemp(path))
        return -1;
    *state = strdup(path);
    return 0;
}

static int drop(const char *path, const struct stat *st, int type, struct FTW *w)
{
    (void)st, (void)type, (void)w;
    return remove(path);
}

int scratch_drop(void **state)
{
    int rc = nftw(*state, drop, 16, FTW_DEPTH | FTW_PHYS);
    free(*state);
    return rc;
}

const char *scratch(void **state, const char *fmt, ...)
{
    static char paths[8][PATH_MAX];
    static unsigned turn;
    char *out = paths[turn++ % 8];
    int n = snprintf(out, PATH_MAX, "%s/", (const char *)*state);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(out + n, (size_t)(PATH_MAX - n), fmt, ap);
    va_end(ap);
    return out;
}

void scratch_write(const char *path, const void *data, size_t n)
{
    FILE *f = fopen(path, "we");
    if (!f)
        fail_msg("cannot create %s", path);
    assert_int_equal(fwrite(data, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

char *scratch_read(const char *path, size_t *n)
{
    FILE *f = fopen(path, "re");
    if (!f)
        fail_msg("cannot open %s", path);
    assert_int_equal(fseek(f, 0, SEEK_END), 0);
    *n = (size_t)ftell(f);
    rewind(f);
    char *data = malloc(*n + 1);
    assert_int_equal(fread(data, 1, *n, f), *n);
    data[*n] = 0;
    fclose(f);
    return data;
}

int scratch_count(const char *dir, const char *suffix)
{
    DIR *d = opendir(dir);
    int found = 0;
    if (!d)
        return 0;
    for (struct dirent *entry; (entry = readdir(d));) {
        size_t a = strlen(entry->d_name), b = strlen(suffix);
        found += entry->d_name[0] != '.' && a >= b && strcmp(entry->d_name + a - b, suffix) == 0;
    }
    closedir(d);
    return found;
}
