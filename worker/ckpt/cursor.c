/* Walks over JSON text without building a tree of it. */
#include "worker/ckpt/cursor.h"

#include <stddef.h>
#include <string.h>

void cursor_blanks(struct cursor *c)
{
    while (c->p < c->end && (*c->p == ' ' || *c->p == '\t' || *c->p == '\n' || *c->p == '\r'))
        c->p++;
}

bool cursor_char(struct cursor *c, char expected)
{
    cursor_blanks(c);
    if (c->p == c->end || *c->p != expected)
        return false;
    c->p++;
    return true;
}

bool cursor_string(struct cursor *c, struct cursor *ret)
{
    cursor_blanks(c);
    ret->p = c->p;
    if (c->p == c->end || *c->p++ != '"')
        return false;
    while (c->p < c->end && *c->p != '"')
        c->p += *c->p == '\\' && c->end - c->p > 1 ? 2 : 1;
    if (c->p == c->end)
        return false;
    ret->end = ++c->p;
    return true;
}

/* To behind the bracket that belongs to the one where c stands. */
static bool skip_brackets(struct cursor *c)
{
    struct cursor text;
    size_t depth = 0;
    do {
        if (c->p == c->end)
            return false;
        if (*c->p == '"') {
            if (!cursor_string(c, &text))
                return false;
            continue;
        }
        depth += *c->p == '{' || *c->p == '[';
        depth -= *c->p == '}' || *c->p == ']';
        c->p++;
    } while (depth > 0);
    return true;
}

bool cursor_value(struct cursor *c, struct cursor *ret)
{
    cursor_blanks(c);
    ret->p = c->p;
    if (c->p == c->end)
        return false;
    if (*c->p == '"')
        return cursor_string(c, ret);
    if (*c->p == '{' || *c->p == '[') {
        if (!skip_brackets(c))
            return false;
    } else {
        while (c->p < c->end && *c->p && !strchr(",]} \t\r\n", *c->p))
            c->p++;
    }
    ret->end = c->p;
    return ret->end > ret->p;
}

cJSON *cursor_parse(const struct cursor *part)
{
    const char *end = NULL;
    cJSON *tree = cJSON_ParseWithLengthOpts(part->p, (size_t)(part->end - part->p), &end, 0);
    if (tree && end == part->end)
        return tree;
    cJSON_Delete(tree);
    return NULL;
}
