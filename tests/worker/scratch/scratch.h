/* A folder for one test case, and small files in it. Failures here fail the case. */
#ifndef CRUN_TESTS_WORKER_SCRATCH_H
#define CRUN_TESTS_WORKER_SCRATCH_H

#include <stddef.h>

int scratch_make(void **state); /* cmocka setup: *state becomes the folder's path */
int scratch_drop(void **state); /* teardown: removed with all that is in it */

/* <folder>/<name>, printf-like; static storage, eight of them in turn. */
const char *scratch(void **state, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void scratch_write(const char *path, const void *data, size_t n);
char *scratch_read(const char *path, size_t *n);        /* freed by the caller; NUL added */
int scratch_count(const char *dir, const char *suffix); /* entries of dir whose names end so */

#endif
