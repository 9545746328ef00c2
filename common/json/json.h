/* JSON: documents from outside come in through json.h (cJSON parses; reads are typed, bounded and name what is wrong);
 * what programs print goes straight into a buffer through json_write.h. */
#ifndef CRUN_COMMON_JSON_H
#define CRUN_COMMON_JSON_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stdint.h>

struct buf;
struct err;

/* Parse a whole regular file of at most max_bytes. *ret is freed with cJSON_Delete. -ENOENT, -E2BIG, ERR_CORRUPT. */
int json_read_file(const char *path, size_t max_bytes, cJSON **ret, struct err *e);
/* The same of `name` in the folder `at`, which may be no link: for folders that others may write to. path: for e. */
int json_read_in(int at, const char *name, const char *path, size_t max_bytes, cJSON **ret, struct err *e);

/* Parse what has come from elsewhere; path says where from, for e. ERR_CORRUPT: also if it would fill memory. */
int json_read_text(const struct buf *b, const char *path, cJSON **ret, struct err *e);

/* Members of an object; ERR_CORRUPT with "member 'x' ..." if missing or of another type. *ret strings are owned by the
 * tree. */
int json_str(const cJSON *o, const char *name, const char **ret, struct err *e);
int json_i64(const cJSON *o, const char *name, int64_t *ret, struct err *e);
int json_f64(const cJSON *o, const char *name, double *ret, struct err *e);

/* Members of what is only shown or may be missing. `otherwise` (borrowed) is the answer where there is none, or it is
 * of another type, no finite number, or (int) none that an int holds. */
const char *json_str_or(const cJSON *o, const char *name, const char *otherwise);
double json_f64_or(const cJSON *o, const char *name, double otherwise);
int json_int_or(const cJSON *o, const char *name, int otherwise); /* without its fraction */

/* JSON is UTF-8: in the strings of a tree (not in its keys) other bytes become U+FFFD. -ENOMEM. */
int json_clean(cJSON *tree, struct err *e);

#endif
