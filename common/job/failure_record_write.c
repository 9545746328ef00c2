/* Writes a failure record by hand: five members do not need a JSON library. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/err.h"
#include "common/base/utf8.h"
#include "common/job/failure_record.h"

/* Print text as the inside of a JSON string; bytes that are not UTF-8 become '?'. */
static void print_escaped(FILE *f, const char *text)
{
    for (const unsigned char *s = (const unsigned char *)text; *s;) {
        size_t n = utf8_len((const char *)s);
        if (*s == '"' || *s == '\\')
            fprintf(f, "\\%c", *s);
        else if (*s < 0x20)
            fprintf(f, "\\u%04x", *s);
        else
            fprintf(f, "%.*s", n ? (int)n : 1, n ? (const char *)s : "?");
        s += n ? n : 1;
    }
}

static void print_record(FILE *f, const struct failure_record *r)
{
    fputs("{\"message\": {\"message\": \"", f);
    print_escaped(f, r->message);
    /* Leave out py_callstack: torchrun shows even an empty one in place of the message. */
    fprintf(f, "\", \"extraInfo\": {\"timestamp\": \"%" PRId64 "\"}}", r->timestamp);
    if (r->exitcode >= 0)
        fprintf(f, ", \"exitcode\": %d", r->exitcode);
    if (r->rank >= 0)
        fprintf(f, ", \"rank\": %d", r->rank);
    if (r->step >= 0)
        fprintf(f, ", \"step\": %" PRId64, r->step);
    fputs("}\n", f);
}

int failure_record_write(const char *path, const struct failure_record *r, struct err *e)
{
    char tmp[4096];
    if (!path || !path[0])
        return 0;
    if ((size_t)snprintf(tmp, sizeof tmp, "%s.tmp", path) >= sizeof tmp)
        return err_set(e, -ENAMETOOLONG, "failure record '%.60s...': the path is too long", path);
    unlink(tmp);
    const int fd = open(tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666); /* through no link of another user's */
    FILE *f = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (!f)
        return err_errno(e, errno, "write failure record '%s'", tmp);
    print_record(f, r);
    bool failed = ferror(f);
    if (fclose(f) != 0 || failed || rename(tmp, path) != 0) {
        int why = errno;
        unlink(tmp);
        return err_errno(e, why, "write failure record '%s'", path);
    }
    return 0;
}
