/* Parses a log of the state directory (state_log.h). */
#include "rendezvousd/state/state_log.h"

#include <ctype.h>
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/rdzv/leader/leader.h"
#include "common/rdzv/wire/rdzv_frame.h"

#define WORD "rendezvousd-log "
#define WORD_LEN (sizeof WORD - 1)
#define VERSION_MAX 100000000
#define TRIES_MAX 64

int state_log_header(struct buf *out)
{
    return buf_printf(out, WORD "%d\n", LEADER_FORMAT);
}

int state_log_check(const char *p, size_t n, size_t *ret, struct err *e)
{
    size_t at = n < WORD_LEN ? n : WORD_LEN;
    int version = 0;
    const bool ours = memcmp(p, WORD, at) == 0;
    for (; at >= WORD_LEN && at < n && isdigit((unsigned char)p[at]) && version < VERSION_MAX; at++)
        version = 10 * version + (p[at] - '0');
    *ret = 0;
    if (ours && at == n)
        return 0;
    if (!ours || at == WORD_LEN || p[at] != '\n')
        return err_set(e, ERR_CORRUPT, "its first line is not '" WORD "%d'", LEADER_FORMAT);
    if (version < LEADER_FORMAT_OLDEST || version > LEADER_FORMAT)
        return err_set(e, ERR_MISMATCH,
                       "its format is %d, but this rendezvousd reads formats %d and %d: start the version that wrote "
                       "it, or name another --state-dir, which does not know its job",
                       version, LEADER_FORMAT_OLDEST, LEADER_FORMAT);
    *ret = at + 1;
    return 0;
}

/* Is there a whole frame after a bad one? An unfinished write never leaves that, so it means damage. A checksum is
 * computed only where a higher number stands, and for a limited number of places, so that a prepared file cannot
 * make this slow. */
static bool frame_follows(const char *p, size_t n, uint32_t after)
{
    struct rdzv_frame f;
    int tries = 0;
    for (const char *nl = p; (nl = memchr(nl, '\n', n - (size_t)(nl - p))); nl++) {
        const char *at = nl - (RDZV_FRAME_HEAD - 1);
        uint32_t number;
        if (nl - p < RDZV_FRAME_HEAD - 1 || !rdzv_frame_number(at, &number) || number <= after)
            continue;
        if (rdzv_frame_take(at, n - (size_t)(at - p), &f))
            return true;
        if (++tries == TRIES_MAX)
            return true; /* an accident does not look like this */
    }
    return false;
}

static int take(struct buf *out, const struct rdzv_frame *f)
{
    TRY(buf_add(out, f->text, f->len));
    return f->len && f->text[f->len - 1] != '\n' ? buf_add(out, "\n", 1) : 0;
}

int state_log_parse(const char *p, size_t n, struct buf *out, size_t *ret_good, struct err *e)
{
    struct rdzv_frame f;
    uint32_t expected = 1;
    size_t at;
    TRY(state_log_check(p, n, &at, e));
    for (size_t end = at ? n : 0; at < end; at += f.bytes, expected++) {
        if (!rdzv_frame_take(p + at, n - at, &f)) {
            if (frame_follows(p + at, n - at, expected))
                return err_set(e, ERR_CORRUPT, "record %u at byte %zu is damaged, and more follow", expected, at);
            break;
        }
        if (f.number != expected)
            return err_set(e, ERR_CORRUPT, "record %u at byte %zu stands where record %u is expected", f.number, at,
                           expected);
        if (take(out, &f) < 0)
            return err_set(e, -ENOMEM, "no memory for its records");
    }
    *ret_good = at;
    return 0;
}
