/* Names of classes in a checkpoint's manifest. "classes" is one text, each name ended by a line feed: a list would take
 * ten times the memory of the names, which may be millions. "class_bytes": {"<class>": hex} has the bytes of names that
 * are no UTF-8 or have a line feed in them; in the text U+FFFD stands for such a byte. Older checkpoints have a list of
 * strings. */
#ifndef CRUN_WORKER_MANIFEST_CLASS_NAMES_H
#define CRUN_WORKER_MANIFEST_CLASS_NAMES_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>

struct err;

/* -ENOMEM. */
int class_names_add(cJSON *meta, char *const *names, int n);

/* A walk over the names: for (struct class_names c = class_names_of(meta); class_names_next(&c);) uses c.name, which is
 * the tree's and has c.length bytes, not a 0 after them. */
struct class_names {
    const char *name;
    size_t length;
    const char *at;    /* of the text, NULL: a list */
    const cJSON *item; /* of the list */
};
struct class_names class_names_of(const cJSON *meta);
bool class_names_next(struct class_names *c);

/* Are they these n? ERR_MISMATCH names the first that differs, or both numbers. */
int class_names_check(const cJSON *meta, char *const *names, int n, struct err *e);

#endif
