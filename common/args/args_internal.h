/* Shared by args*.c only. */
#ifndef CRUN_COMMON_ARGS_INTERNAL_H
#define CRUN_COMMON_ARGS_INTERNAL_H

#include "common/args/args.h"

/* Parse text into the field of spec. what: "--name" or the variable, for the error. Returns 0 or ERR_USAGE. */
int args_set_value(const struct arg_spec *s, const char *what, const char *text, void *config, struct err *e);

/* The first non-empty variable of the spec; *ret_name (cap bytes) gets its name. NULL if there is none. */
const char *args_env_value(const struct arg_spec *s, char *ret_name, size_t cap);

/* Iterate over a list with separators: returns the next item's length and sets *item; 0 at the end. *cursor starts as
 * the list. */
size_t args_next_item(const char **cursor, char separator, const char **item);

/* Read the settings files: fill in text, source, file_path and file_line of options that the command line did not
 * give. ERR_USAGE. */
int args_read_files(const struct arg_program *p, struct arg_result *r, struct err *e);

/* The same of p->settings, if there are any. */
int args_read_settings(const struct arg_program *p, const void *config, struct arg_result *r, struct err *e);

/* "N", "TEXT": the metavar of the spec, or one made from its type. */
const char *args_metavar(const struct arg_spec *s);

/* Does --no-NAME exist? For flags that do not begin with "no-" themselves. */
bool args_negatable(const struct arg_spec *s);

/* "(default 1; 1 to 64; also --x; $A)", or "". Returns out. */
char *args_remarks(const struct arg_spec *s, char *out, size_t cap);

/* The range in words ("1 to 64", "at least 1"); "" if there is none. Returns out. */
char *args_range_text(const struct arg_spec *s, char *out, size_t cap);

static inline void *args_field(const struct arg_spec *s, void *config)
{
    return (char *)config + s->at;
}

#endif
