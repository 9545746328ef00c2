/* Reading a failure record. Writing is in a file of its own, because libcrun writes but must not depend on cJSON. */
#include "common/job/failure_record.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/base/err.h"
#include "common/json/json.h"

enum { MAX_FILE_BYTES = 1 << 20 };

/* torchrun writes the time as a string of digits; a JSON number is accepted, too. 0 if there is none. */
static int64_t read_time(const cJSON *o)
{
    const cJSON *t = cJSON_GetObjectItemCaseSensitive(o, "timestamp");
    if (cJSON_IsString(t))
        return strtoll(t->valuestring, NULL, 10);
    return cJSON_IsNumber(t) && t->valuedouble > 0 && t->valuedouble < 0x1p53 ? (int64_t)t->valuedouble : 0;
}

static int64_t read_optional(const cJSON *o, const char *name, int64_t max)
{
    int64_t v;
    return json_i64(o, name, &v, NULL) == 0 && v >= 0 && v <= max ? v : -1;
}

/* Copy, cutting at the start of a character. */
static void copy_text(char *out, size_t cap, const char *text)
{
    size_t n = strlen(text);
    if (n >= cap)
        for (n = cap - 1; n > 0 && ((unsigned char)text[n] & 0xc0) == 0x80;)
            n--;
    memcpy(out, text, n);
    out[n] = 0;
}

static int interpret(const cJSON *tree, struct failure_record *r, struct err *e)
{
    const cJSON *message = cJSON_GetObjectItemCaseSensitive(tree, "message");
    const char *text;
    *r = (struct failure_record){.exitcode = -1, .rank = -1, .step = -1};
    if (cJSON_IsString(message)) {
        text = message->valuestring;
        r->timestamp = read_time(tree);
    } else {
        if (json_str(message, "message", &text, e) < 0)
            return err_wrap(e, "member 'message'");
        r->timestamp = read_time(cJSON_GetObjectItemCaseSensitive(message, "extraInfo"));
    }
    copy_text(r->message, sizeof r->message, text);
    r->exitcode = (int)read_optional(tree, "exitcode", 255);
    r->rank = (int)read_optional(tree, "rank", INT32_MAX);
    r->step = read_optional(tree, "step", INT64_MAX);
    return 0;
}

static int take_record(int rc, cJSON *tree, const char *path, struct failure_record *ret, struct err *e)
{
    struct failure_record r;
    if (rc < 0)
        return rc;
    rc = interpret(tree, &r, e);
    cJSON_Delete(tree);
    if (rc < 0)
        return err_wrap(e, "failure record '%s'", path);
    *ret = r;
    return 0;
}

bool failure_record_look(int at, const char *name, const char *path, struct failure_record *ret)
{
    struct err why;
    struct stat st;
    cJSON *tree = NULL;
    const int rc = json_read_in(at, name, path, MAX_FILE_BYTES, &tree, &why);
    if (take_record(rc, tree, path, ret, &why) == 0)
        return true;
    if (fstatat(at, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return false;
    *ret = (struct failure_record){.timestamp = 0};
    if (S_ISLNK(st.st_mode))
        snprintf(ret->message, sizeof ret->message, "its error record is a symbolic link, which is not read");
    else if (st.st_size == 0)
        snprintf(ret->message, sizeof ret->message, "its error record is empty: a full disk or a kill came between");
    else
        snprintf(ret->message, sizeof ret->message, "its error record cannot be read: %.400s", why.text);
    return true;
}

int failure_record_read(const char *path, struct failure_record *ret, struct err *e)
{
    cJSON *tree = NULL;
    struct err local, *why = e ? e : &local; /* err_wrap() needs one to keep the code */
    const int rc = json_read_file(path, MAX_FILE_BYTES, &tree, why);
    return take_record(rc, tree, path, ret, why);
}
