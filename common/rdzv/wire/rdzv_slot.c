#include "common/rdzv/wire/rdzv_slot.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/rdzv/wire/rdzv_wire.h"

static const char *const answer_names[] = {
#define X(name, text) [name] = (text),
    RDZV_ANSWERS(X)
#undef X
};

static int encode_head(const struct rdzv_slot *s, struct buf *line)
{
    TRY(rdzv_field_text(line, "inc", s->inc));
    TRY(rdzv_field_text(line, "instance", s->instance));
    TRY(rdzv_field_int(line, "q", (long long)s->q));
    TRY(rdzv_field_text(line, "answer", answer_names[s->answer]));
    return s->text[0] ? rdzv_field_text(line, "text", s->text) : 0;
}

int rdzv_slot_encode(const struct rdzv_slot *s, struct buf *out)
{
    struct buf line = {0};
    int rc = encode_head(s, &line);
    rc = rc ? rc
            : buf_printf(out, "%s\n%.*s\n%.*s\n", line.data, (int)s->news_len, s->news ? s->news : "",
                         (int)s->members_len, s->members ? s->members : "");
    buf_free(&line);
    return rc;
}

const char *rdzv_answer_name(enum rdzv_answer a)
{
    return answer_names[a];
}

int rdzv_answer_parse(const char *name, enum rdzv_answer *ret, struct err *e)
{
    for (size_t i = 0; i < sizeof answer_names / sizeof *answer_names; i++)
        if (strcmp(name, answer_names[i]) == 0) {
            *ret = (enum rdzv_answer)i;
            return 0;
        }
    return err_set(e, -EPROTO, "answer '%.40s' is none of ok, fenced, unknown, differs, refused", name);
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
    char number[24] = "", answer[16] = "";
    size_t len;
    *ret = (struct rdzv_slot){0};
    const char *head = next_line(&p, end, &len);
    if (rdzv_field_find(head, len, "inc", ret->inc, sizeof ret->inc) < 0 ||
        rdzv_field_find(head, len, "instance", ret->instance, sizeof ret->instance) < 0 ||
        rdzv_field_find(head, len, "q", number, sizeof number) < 0 ||
        rdzv_field_find(head, len, "answer", answer, sizeof answer) < 0 ||
        rdzv_field_find(head, len, "text", ret->text, sizeof ret->text) < 0)
        return err_set(e, -EPROTO, "a slot's head is malformed: %.*s", (int)(len < 200 ? len : 200), head);
    TRY(rdzv_answer_parse(answer, &ret->answer, e));
    ret->q = strtoull(number, NULL, 10);
    ret->news = next_line(&p, end, &ret->news_len);
    ret->members = next_line(&p, end, &ret->members_len);
    return 0;
}
