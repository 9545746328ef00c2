/* Writes JSON straight into a buffer, without a tree: pages that are fetched each second must not block the loop.
 * Errors (-ENOMEM) are kept in w->rc, and nothing is written after one. Strings are escaped as JSON requires, and
 * not checked: the caller must give UTF-8. */
#ifndef CRUN_COMMON_JSON_WRITE_H
#define CRUN_COMMON_JSON_WRITE_H

#include <stdbool.h>

struct buf;

struct json_write {
    struct buf *out; /* the caller's */
    bool comma;      /* something stands before the next value */
    int rc;
};

/* Begin and end an object or array. key: NULL in an array. bracket: '{' or '['; end: '}' or ']'. */
void json_begin(struct json_write *w, const char *key, char bracket);
void json_end(struct json_write *w, char end);
void json_text(struct json_write *w, const char *key, const char *text);
void json_int(struct json_write *w, const char *key, long long v);
void json_number(struct json_write *w, const char *key, double v); /* null where it is not finite */
/* Insert text that is JSON already; the caller has checked it. */
void json_raw(struct json_write *w, const char *key, const char *json);
void json_bool(struct json_write *w, const char *key, bool v);

#endif
