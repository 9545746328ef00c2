#include "common/rdzv/wire/rdzv_slot.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/rdzv/wire/rdzv_record.h"

static const char *answer_word(int v)
{
    static const char *const words[] = {
#define X(name, text) [name] = (text),
        RDZV_ANSWERS(X)
#undef X
    };
    return words[v];
}

static const struct rdzv_field fields[] = {
    RDZV_TEXT(RDZV_ALL, struct rdzv_slot, "inc", inc),
    RDZV_TEXT(RDZV_ALL, struct rdzv_slot, "instance", instance),
    RDZV_NUMBER(RDZV_ALL, struct rdzv_slot, "q", q, 0, INT64_MAX, LLONG_MIN),
    RDZV_NAME(RDZV_ALL, struct rdzv_slot, "answer", answer, 0, ANSWER_REFUSED, LLONG_MIN, answer_word),
    RDZV_TEXT(RDZV_ALL, struct rdzv_slot, "text", text),
};

int rdzv_slot_head_encode(const struct rdzv_slot *s, struct buf *out)
{
    return rdzv_record_write(out, fields, sizeof fields / sizeof *fields, RDZV_ALL, s);
}

int rdzv_slot_head_decode(const char *p, size_t n, struct rdzv_slot *ret, struct err *e)
{
    return rdzv_record_read(p, n, fields, sizeof fields / sizeof *fields, ret, e);
}

int rdzv_slot_encode(const struct rdzv_slot *s, struct buf *out)
{
    struct buf line = {0};
    int rc = rdzv_slot_head_encode(s, &line);
    rc = rc ? rc
            : buf_printf(out, "%s\n%.*s\n%.*s\n", line.data ? line.data : "", (int)s->news_len, s->news ? s->news : "",
                         (int)s->members_len, s->members ? s->members : "");
    buf_free(&line);
    return rc;
}

/* The next line, without its end. */
static const char *next_line(const char **p, const char *end, size_t *ret_len)
{
    const char *line = *p, *stop = line < end ? memchr(line, '\n', (size_t)(end - line)) : NULL;
    if (!stop)
        stop = end;
    *ret_len = (size_t)(stop - line);
    *p = stop < end ? stop + 1 : end;
    return line;
}

int rdzv_slot_decode(const char *p, size_t n, struct rdzv_slot *ret, struct err *e)
{
    const char *end = p + n;
    size_t len;
    *ret = (struct rdzv_slot){0};
    const char *head = next_line(&p, end, &len);
    TRY(rdzv_slot_head_decode(head, len, ret, e));
    ret->news = next_line(&p, end, &ret->news_len);
    ret->members = next_line(&p, end, &ret->members_len);
    return 0;
}
