/* A prefix for one start of a job, in a store that may hold what earlier starts left, where nobody says which start
 * this is.
 *
 * - Everybody but rank 0 draws a number and writes "hello NUMBER" into the next entry of a log: nobody else writes that
 *   entry.
 * - Rank 0 draws the session. It reads the log from its beginning and answers each hello under the number in it: only
 *   the one who drew it looks there, and finds nothing older. Hellos of earlier starts are answered to nobody.
 * - Who has the session writes "got SESSION" into the log; rank 0 has read as many of them as there are others: all
 *   have it.
 * - An entry whose writer died between taking and writing it is passed over once a later one is there. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/store/store.h"
#include "worker/meet/meet_impl.h"

enum { HOLE_MS = 1000, LOOK_MS = 200, TEXT = 256, DRAWN = 16 };

struct agreement {
    struct store *s;
    const char *run_id;
    int64_t deadline;
    struct err *e;
};

static int draw(char *hex, struct err *e)
{
    unsigned char bytes[DRAWN];
    if (getrandom(bytes, sizeof bytes, 0) != sizeof bytes)
        return err_errno(e, errno, "getrandom");
    for (int i = 0; i < DRAWN; i++)
        snprintf(hex + 2 * i, 3, "%02x", bytes[i]);
    return 0;
}

static const char *key(const struct agreement *a, const char *what, const char *which, char *text)
{
    snprintf(text, TEXT, "/crun/%.100s/%s/%s", a->run_id, what, which);
    return text;
}

static const char *entry(const struct agreement *a, int64_t i, char *text)
{
    char number[24];
    snprintf(number, sizeof number, "%" PRId64, i);
    return key(a, "log", number, text);
}

static int write_entry(const struct agreement *a, const char *what, const char *drawn)
{
    char k[TEXT], value[TEXT];
    int64_t i;
    const int n = snprintf(value, sizeof value, "%s %s", what, drawn);
    TRY(store_add(a->s, key(a, "log", "length", k), 1, &i, clock_left(a->deadline), a->e));
    return store_set(a->s, entry(a, i, k), value, (size_t)n, clock_left(a->deadline), a->e);
}

/* Entry *i or, past a hole, a later one. */
static int read_entry(const struct agreement *a, int64_t *i, struct buf *value)
{
    char k[TEXT], next[TEXT];
    const char *const later[] = {next};
    for (;;) {
        const int left = clock_left(a->deadline);
        buf_clear(value);
        int rc = store_wait_get(a->s, entry(a, *i, k), value, left < HOLE_MS ? left : HOLE_MS, a->e);
        if (rc != -ETIMEDOUT || clock_left(a->deadline) == 0)
            return rc;
        entry(a, *i + 1, next);
        *i += store_wait(a->s, later, 1, LOOK_MS, NULL) == 0;
    }
}

static int host_session(const struct agreement *a, int world, const char *session)
{
    struct buf value = {.max = TEXT};
    char k[TEXT];
    int rc = 0;
    for (int64_t i = 1, got = 0; rc == 0 && got < world - 1; i++) {
        if ((rc = read_entry(a, &i, &value)) < 0)
            break;
        if (strncmp(value.data, "hello ", 6) == 0)
            rc = store_set(a->s, key(a, "welcome", value.data + 6, k), session, strlen(session),
                           clock_left(a->deadline), a->e);
        got += strncmp(value.data, "got ", 4) == 0 && strcmp(value.data + 4, session) == 0;
    }
    buf_free(&value);
    return rc;
}

static int join_session(const struct agreement *a, char *session)
{
    struct buf value = {.max = TEXT};
    char k[TEXT], number[2 * DRAWN + 1];
    TRY(draw(number, a->e));
    TRY(write_entry(a, "hello", number));
    int rc = store_wait_get(a->s, key(a, "welcome", number, k), &value, clock_left(a->deadline), a->e);
    if (rc == 0 && value.len != 2 * DRAWN)
        rc = err_set(a->e, -EPROTO, "rank 0 gave a session of %zu bytes, expected %d", value.len, 2 * DRAWN);
    if (rc == 0) {
        memcpy(session, value.data, 2 * DRAWN + 1);
        rc = write_entry(a, "got", session);
    }
    buf_free(&value);
    return rc;
}

int meet_agree(struct store *s, const char *run_id, int rank, int world, char *ret, size_t cap, int64_t deadline,
               struct err *e)
{
    char session[2 * DRAWN + 1];
    struct err local;
    const struct agreement a = {s, run_id, deadline, e ? e : &local};
    int rc = rank == 0 ? draw(session, a.e) : join_session(&a, session);
    if (rc == 0 && rank == 0)
        rc = host_session(&a, world, session);
    if (rc < 0)
        return err_wrap(a.e, "the ranks could not agree on a part of the store for this start");
    snprintf(ret, cap, "/crun/%.100s/%s/", run_id, session);
    return 0;
}
