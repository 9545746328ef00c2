/* `trainer make-data text`: bytes of a file as tokens of two bytes each, in llm.c's format (token_set.h). Each file is
 * written under a temporary name and renamed when it is whole. */
#include <errno.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/err.h"
#include "common/base/file.h"
#include "common/base/path.h"
#include "worker/data/sets/token_set.h"

enum { PIECE = 1 << 16 };

static int write_header(FILE *out, long long tokens)
{
    const int32_t head[TOKEN_HEADER / sizeof(int32_t)] = {TOKEN_MAGIC_U16, 1, (int32_t)tokens};
    return fwrite(head, sizeof head, 1, out) == 1 ? 0 : -EIO;
}

/* n bytes of `in` as tokens. -ENODATA: it ends before. */
static int copy(FILE *in, FILE *out, long long n)
{
    uint8_t bytes[PIECE];
    uint16_t tokens[PIECE];
    if (write_header(out, n) < 0)
        return -EIO;
    while (n > 0) {
        const size_t want = n < PIECE ? (size_t)n : PIECE;
        if (fread(bytes, 1, want, in) != want)
            return ferror(in) ? -EIO : -ENODATA;
        for (size_t i = 0; i < want; i++)
            tokens[i] = bytes[i];
        if (fwrite(tokens, sizeof *tokens, want, out) != want)
            return -EIO;
        n -= (long long)want;
    }
    return 0;
}

static int write_part(FILE *in, const struct text_options *o, const char *name, long long n, struct err *e)
{
    char path[PATH_MAX], part[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/%s", o->out, name) >= (int)sizeof path ||
        snprintf(part, sizeof part, "%s.%ld~", path, (long)getpid()) >= (int)sizeof part)
        return err_set(e, ERR_USAGE, "the path '%.100s...' is too long", o->out);
    unlink(part); /* of a process that was killed */
    FILE *out = fopen(part, "wxbe");
    if (!out)
        return err_set(e, ERR_OUTPUT, "cannot write '%s': %s", path, strerror(errno));
    errno = 0;
    const int rc = copy(in, out, n);
    if (fclose(out) == 0 && rc == 0 && rename(part, path) == 0)
        return 0;
    const int code = errno;
    unlink(part);
    return rc == -ENODATA
               ? err_set(e, ERR_DATA, "'%s' became shorter while it was read", o->text)
               : err_set(e, ERR_OUTPUT, "cannot make '%s' of '%s': %s", path, o->text, strerror(code ? code : EIO));
}

/* What an earlier text left there is held out of another one. */
static int remove_part(const struct text_options *o, const char *name, struct err *e)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", o->out, name);
    return unlink(path) == 0 || errno == ENOENT
               ? 0
               : err_set(e, ERR_OUTPUT, "cannot remove the older '%s': %s", path, strerror(errno));
}

static int write_parts(FILE *in, const struct text_options *o, long long ret[2], struct err *e)
{
    struct stat st;
    if (fstat(fileno(in), &st) < 0)
        return err_errno(e, errno, "cannot read '%s'", o->text);
    if (st.st_size == 0 || st.st_size > INT32_MAX)
        return err_set(e, ERR_DATA, "'%s' has %lld bytes (expected 1 to %d)", o->text, (long long)st.st_size,
                       INT32_MAX);
    ret[1] = (long long)((double)st.st_size * o->val_share);
    ret[0] = (long long)st.st_size - ret[1];
    TRY(path_make_dirs(o->out, e));
    TRY(write_part(in, o, "train.bin", ret[0], e));
    return ret[1] > 0 ? write_part(in, o, "val.bin", ret[1], e) : remove_part(o, "val.bin", e);
}

int text_make(const struct text_options *o, long long ret[2], struct err *e)
{
    FILE *in = NULL;
    if (file_stream_regular(&in, o->text, ERR_DATA, e) < 0)
        return e ? e->code = ERR_DATA : ERR_DATA;
    const int rc = write_parts(in, o, ret, e);
    fclose(in);
    return rc;
}
