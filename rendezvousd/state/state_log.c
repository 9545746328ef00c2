/* The format of a log: see state_dir.h. Pure. */
#include "common/base/crc32c.h"
#include "common/base/err.h"
#include "common/base/numbers.h"
#include "rendezvousd/state/state_dir.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>

#define HEADER "rendezvousd-log 2\n"
#define HEADER_LEN (sizeof HEADER - 1)
#define FRAME_LEN 27  /* "LLLLLLLL NNNNNNNN CCCCCCCC\n" */
#define SUMMED_LEN 17 /* "LLLLLLLL NNNNNNNN" */

int state_log_header(struct buf *out)
{
    return buf_add(out, HEADER, HEADER_LEN);
}

int state_log_frame(struct buf *out, uint32_t number, const void *text, size_t n)
{
    char frame[FRAME_LEN + 1];
    TRY(buf_reserve(out, FRAME_LEN + n + 1));
    snprintf(frame, sizeof frame, "%08x %08x", (unsigned)n, (unsigned)number);
    uint32_t crc = crc32c(crc32c(0, frame, SUMMED_LEN), text, n);
    snprintf(frame + SUMMED_LEN, sizeof frame - SUMMED_LEN, " %08x\n", (unsigned)crc);
    TRY(buf_add(out, frame, FRAME_LEN));
    if (n)
        TRY(buf_add(out, text, n));
    return buf_add(out, "\n", 1);
}

static bool read_hex(const char *p, uint32_t *ret)
{
    uint32_t v = 0;
    for (int i = 0; i < 8; i++) {
        if (hex_digit(p[i]) < 0)
            return false;
        v = v << 4 | (uint32_t)hex_digit(p[i]);
    }
    *ret = v;
    return true;
}

/* A whole record with a right sum at p? */
static bool read_record(const char *p, size_t n, uint32_t *ret_number, size_t *ret_len)
{
    uint32_t len, crc;
    if (n < FRAME_LEN + 1 || p[8] != ' ' || p[17] != ' ' || p[26] != '\n')
        return false;
    if (!read_hex(p, &len) || !read_hex(p + 9, ret_number) || !read_hex(p + 18, &crc))
        return false;
    if (len > STATE_RECORD_MAX || len > n - FRAME_LEN - 1 || p[FRAME_LEN + len] != '\n')
        return false;
    *ret_len = len;
    return crc32c(crc32c(0, p, SUMMED_LEN), p + FRAME_LEN, len) == crc;
}

/* What one unfinished write can leave behind holds no whole record that comes after the bad one. A sum is computed only
 * where a later number stands, and for a bounded number of places: nobody can make this slow with a prepared file. */
static bool record_follows(const char *p, size_t n, uint32_t after)
{
    int tries = 0;
    size_t len;
    for (const char *nl = p; (nl = memchr(nl, '\n', n - (size_t)(nl - p))); nl++) {
        const char *at = nl - (FRAME_LEN - 1);
        uint32_t number;
        if (nl - p < FRAME_LEN - 1 || !read_hex(at + 9, &number) || number <= after)
            continue;
        if (read_record(at, n - (size_t)(at - p), &number, &len))
            return true;
        if (++tries == 64)
            return true; /* no accident looks like this */
    }
    return false;
}

static int take(struct buf *out, const char *text, size_t n)
{
    TRY(buf_add(out, text, n));
    return n && text[n - 1] != '\n' ? buf_add(out, "\n", 1) : 0;
}

int state_log_parse(const char *p, size_t n, struct buf *out, size_t *ret_good, struct err *e)
{
    uint32_t expected = 1;
    size_t at = HEADER_LEN;
    if (n < HEADER_LEN && memcmp(p, HEADER, n) == 0) {
        *ret_good = 0;
        return 0;
    }
    if (n < HEADER_LEN || memcmp(p, HEADER, HEADER_LEN) != 0)
        return err_set(e, ERR_CORRUPT, "its first line is not '%.*s'", (int)HEADER_LEN - 1, HEADER);
    while (at < n) {
        uint32_t number = 0;
        size_t len = 0;
        if (!read_record(p + at, n - at, &number, &len)) {
            if (record_follows(p + at, n - at, expected))
                return err_set(e, ERR_CORRUPT, "record %u at byte %zu is damaged, and more follow", expected, at);
            break;
        }
        if (number != expected)
            return err_set(e, ERR_CORRUPT, "record %u at byte %zu stands where record %u is expected", number, at,
                           expected);
        if (take(out, p + at + FRAME_LEN, len) < 0)
            return err_set(e, -ENOMEM, "no memory for its records");
        at += FRAME_LEN + len + 1;
        expected++;
    }
    *ret_good = at;
    return 0;
}
