/* A record is one line of fields "key=value", written and read by means of a table. It is the text form of events,
 * news, settings and the machine's log. What a value may hold, and how it is escaped, is in rdzv_wire.h. */
#ifndef CRUN_COMMON_RDZV_RECORD_H
#define CRUN_COMMON_RDZV_RECORD_H

#include <limits.h>
#include <stddef.h>
#include <stdint.h>

struct buf;
struct err;

enum rdzv_field_type { RDZV_FIELD_TEXT, RDZV_FIELD_NUMBER, RDZV_FIELD_NAME };

struct rdzv_field {
    const char *key;
    size_t key_len;
    enum rdzv_field_type type;
    unsigned only; /* bits of the record kinds in which the field is written; the reader accepts it in all */
    size_t offset, size;
    long long min, max;         /* NUMBER; NAME: of the enum */
    long long otherwise;        /* value of a key that is absent; a field with this value is not written */
    const char *(*name)(int v); /* NAME: word of each value */
};

#define RDZV_ALL (~0u)
#define RDZV_SIZEOF(type, member) sizeof(((type *)0)->member)
#define RDZV_TEXT(kinds, owner, key_, member)                                                                          \
    {                                                                                                                  \
        .key = (key_), .key_len = sizeof(key_) - 1, .type = RDZV_FIELD_TEXT, .only = (kinds),                          \
        .offset = offsetof(owner, member), .size = RDZV_SIZEOF(owner, member)                                          \
    }
#define RDZV_NUMBER(kinds, owner, key_, member, lo, hi, none)                                                          \
    {                                                                                                                  \
        .key = (key_), .key_len = sizeof(key_) - 1, .type = RDZV_FIELD_NUMBER, .only = (kinds),                        \
        .offset = offsetof(owner, member), .size = RDZV_SIZEOF(owner, member), .min = (lo), .max = (hi),               \
        .otherwise = (none)                                                                                            \
    }
#define RDZV_NAME(kinds, owner, key_, member, lo, hi, none, names)                                                     \
    {                                                                                                                  \
        .key = (key_), .key_len = sizeof(key_) - 1, .type = RDZV_FIELD_NAME, .only = (kinds),                          \
        .offset = offsetof(owner, member), .size = RDZV_SIZEOF(owner, member), .min = (lo), .max = (hi),               \
        .otherwise = (none), .name = (names)                                                                           \
    }

/* Append the fields that a record of this kind (one bit) carries and that differ from `otherwise`. -ENOMEM, -E2BIG. */
int rdzv_record_write(struct buf *out, const struct rdzv_field *fields, size_t count, unsigned kind, const void *base);

/* Set every field of *base from the record (one that is not there and whose `otherwise` is LLONG_MIN stays as it
 * is). -EINVAL names key and value. Unknown keys are ignored; a key that occurs twice is an error. */
int rdzv_record_read(const char *p, size_t n, const struct rdzv_field *fields, size_t count, void *base, struct err *e);

/* Visit every key and unescaped value (both NUL-terminated, borrowed until take() returns; value NULL: it has more than
 * RDZV_VALUE_MAX bytes). -EINVAL; take()'s if it is negative. */
#define RDZV_KEY_MAX 31
#define RDZV_VALUE_MAX 4095 /* bytes */
int rdzv_record_each(const char *p, size_t n, int (*take)(void *arg, const char *key, const char *value, struct err *e),
                     void *arg, struct err *e);

/* Decimal with an optional '-', nothing else. -EINVAL. */
int rdzv_record_number(const char *text, long long *ret);

#endif
