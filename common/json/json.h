/* JSON: json.h reads documents from outside (cJSON parses them; reads are typed, bounded and name what is wrong);
 * json_write.h writes what programs print straight into a buffer. */
#ifndef CRUN_COMMON_JSON_H
#define CRUN_COMMON_JSON_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stdint.h>

struct buf;
struct err;

/* Parse a whole regular file of at most max_bytes. *ret is freed with cJSON_Delete. -ENOENT, -E2BIG, ERR_CORRUPT. */
int json_read_file(const char *path, size_t max_bytes, cJSON **ret, struct err *e);
/* The same for `name` in the folder `at`; it must not be a link. For folders that others may write to. path: used in
 * e. */
int json_read_in(int at, const char *name, const char *path, size_t max_bytes, cJSON **ret, struct err *e);

/* Parse a text from outside; path says where it came from, for e. ERR_CORRUPT, also if its tree would fill memory. */
int json_read_text(const struct buf *b, const char *path, cJSON **ret, struct err *e);

/* Get a member of an object; ERR_CORRUPT with "member 'x' ..." if it is missing or of another type. The tree owns
 * *ret strings. */
int json_str(const cJSON *o, const char *name, const char **ret, struct err *e);
int json_i64(const cJSON *o, const char *name, int64_t *ret, struct err *e);
int json_f64(const cJSON *o, const char *name, double *ret, struct err *e);

/* Get a member that may be missing, or is only displayed. Returns `otherwise` (borrowed) if there is none, it is of
 * another type, not finite, or (int) out of the range of int. */
const char *json_str_or(const cJSON *o, const char *name, const char *otherwise);
double json_f64_or(const cJSON *o, const char *name, double otherwise);
int json_int_or(const cJSON *o, const char *name, int otherwise); /* the integer part */

/* Make a tree valid UTF-8, as JSON requires: other bytes in its strings (not in its keys) become U+FFFD. -ENOMEM. */
int json_clean(cJSON *tree, struct err *e);

#endif
