/* JSON text walked from part to part, without a tree: a tree of the whole would take forty times the memory of its
 * text, and it is the file's to say how many values there are. Pure. */
#ifndef CRUN_WORKER_CKPT_CURSOR_H
#define CRUN_WORKER_CKPT_CURSOR_H

#include <cjson/cJSON.h>
#include <stdbool.h>

struct cursor {
    const char *p, *end;
};

void cursor_blanks(struct cursor *c);
/* Behind blanks: is this character next? Then c stands behind it. */
bool cursor_char(struct cursor *c, char expected);
/* Behind blanks: from a quotation mark to behind its other one. */
bool cursor_string(struct cursor *c, struct cursor *ret);
/* Behind blanks: a value of any kind, from its first character to behind its last; what is within brackets is not
 * looked at. */
bool cursor_value(struct cursor *c, struct cursor *ret);
/* One part, and nothing but it, as a tree; NULL: it is none. */
cJSON *cursor_parse(const struct cursor *part);

#endif
