/* Time. Durations and deadlines use CLOCK_MONOTONIC only; wall time is for people to read. */
#ifndef CRUN_COMMON_CLOCK_H
#define CRUN_COMMON_CLOCK_H

#include <stddef.h>
#include <stdint.h>
#include <time.h>

int64_t clock_ns(void); /* monotonic, nanoseconds */
int64_t clock_ms(void); /* monotonic, milliseconds */

/* A deadline is a clock_ms() value. timeout_ms from now, saturating; negative counts as 0. */
int64_t clock_deadline(int64_t timeout_ms);

/* Milliseconds until the deadline, 0 if it has passed; never above INT_MAX, so that it fits poll(2). */
int clock_left(int64_t deadline_ms);

/* The deadline as pthread_cond_timedwait() takes it; the condition's clock must be CLOCK_MONOTONIC. */
struct timespec clock_timespec(int64_t deadline_ms);

int64_t clock_wall_ms(void); /* wall time, milliseconds since 1970: for people, and never to decide by */

/* Wall time as 2026-11-21T13:46:37.123Z (UTC) into out. Returns out. */
char *clock_iso(char *out, size_t cap);

#define CLOCK_ISO_LEN 32

#endif
