/* JSON written straight into a buffer, without a tree: what people look at each second must not hold up the loop.
 * Errors (-ENOMEM) are kept in w->rc, and nothing is written after one. Strings are taken as they are (UTF-8 is the
 * caller's business), escaped where JSON wants it. */
#ifndef CRUN_COMMON_JSON_WRITE_H
#define CRUN_COMMON_JSON_WRITE_H

#include <stdbool.h>

struct buf;

struct json_write {
    struct buf *out; /* the caller's */
    bool comma;      /* something stands before the next value */
    int rc;
};

/* key: NULL in an array. bracket: '{' or '['; end: '}' or ']'. */
void json_begin(struct json_write *w, const char *key, char bracket);
void json_end(struct json_write *w, char end);
void json_text(struct json_write *w, const char *key, const char *text);
void json_int(struct json_write *w, const char *key, long long v);
void json_number(struct json_write *w, const char *key, double v); /* null where it is not finite */
/* JSON that stands for itself: checked by the caller. */
void json_raw(struct json_write *w, const char *key, const char *json);
void json_bool(struct json_write *w, const char *key, bool v);

#endif
