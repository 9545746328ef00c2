/* Decides what the console shows of unfinished lines and progress bars (partial.h). */
#include "launcher/output/process/partial.h"

#include <string.h>

#include "common/base/numbers.h"

void partial_init(struct partial *p)
{
    *p = (struct partial){.reported_ms = -PARTIAL_MS};
}

static bool is_blank(const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (text[i] != ' ' && text[i] != '\r')
            return false;
    return true;
}

/* The last text of an overwritten line. If it is only spaces, which wipe a progress bar away, the text before it
 * counts. */
struct partial_text partial_last(const char *line, size_t n)
{
    while (n > 0) {
        const char *cr = memrchr(line, '\r', n);
        const char *text = cr ? cr + 1 : line;
        const size_t len = (size_t)(line + n - text);
        if (!cr || !is_blank(text, len))
            return (struct partial_text){text, len};
        n = (size_t)(cr - line);
    }
    return (struct partial_text){line, 0};
}

bool partial_end(struct partial *p, const char *line, size_t n, struct partial_text *ret)
{
    const bool begun = p->shown > 0;
    *ret = p->bar ? partial_last(line + p->shown, n - p->shown) : (struct partial_text){line + p->shown, n - p->shown};
    p->shown = 0;
    p->bar = false;
    return !begun || !is_blank(ret->text, ret->n);
}

void partial_grew(struct partial *p, size_t bytes, int64_t now_ms)
{
    p->grown_ms = now_ms;
    p->full = bytes % PARTIAL_BYTES == 0;
}

static bool show(struct partial *p, struct partial_text text, size_t shown, int64_t now_ms, struct partial_text *ret)
{
    p->shown = shown;
    p->reported_ms = now_ms;
    *ret = text;
    return true;
}

bool partial_check(struct partial *p, const char *line, size_t n, int64_t now_ms, struct partial_text *ret,
                   int64_t *ret_ms)
{
    const char *rest = line + p->shown, *cr = n > p->shown ? memrchr(rest, '\r', n - p->shown) : NULL;
    const size_t begun_at = cr ? (size_t)(cr + 1 - line) : p->shown, begun = n - begun_at;
    const struct partial_text over = cr ? partial_last(rest, (size_t)(cr - rest)) : (struct partial_text){rest, 0};
    *ret_ms = -1;
    if (p->full)
        return false;
    p->bar = p->bar || cr;
    if (!is_blank(over.text, over.n)) {
        if (now_ms - p->reported_ms < PARTIAL_MS) {
            *ret_ms = p->reported_ms + PARTIAL_MS - now_ms;
            return false;
        }
        show(p, over, begun_at, now_ms, ret);
        *ret_ms = begun > 0 ? PARTIAL_MS : -1;
        return true;
    }
    if (is_blank(line + begun_at, begun) || begun > PARTIAL_BYTES)
        return false;
    const int64_t due = max_i64(p->grown_ms, p->reported_ms) + PARTIAL_MS;
    if (now_ms >= due)
        return show(p, (struct partial_text){line + begun_at, begun}, n, now_ms, ret);
    *ret_ms = due - now_ms;
    return false;
}
