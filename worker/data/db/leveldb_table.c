/* The footer, the last 48 bytes: two handles (metaindex, index), each an offset and a size as varints; zeros; the magic
 * number (LevelDB's doc/table_format.md). */
#include "worker/data/db/leveldb_table.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/err.h"

enum { FOOTER = 48, MAGIC_AT = 40, TRAILER = 5 }; /* TRAILER: of a block, behind its size */

static bool take_varint(const uint8_t **p, const uint8_t *end, uint64_t *ret)
{
    *ret = 0;
    for (unsigned shift = 0; *p < end && shift < 64; shift += 7) {
        const uint8_t b = *(*p)++;
        *ret |= (uint64_t)(b & 0x7f) << shift;
        if (b < 0x80)
            return true;
    }
    return false;
}

static bool is_within(const uint8_t footer[FOOTER], uint64_t bytes)
{
    const uint8_t *p = footer, *end = footer + MAGIC_AT;
    uint64_t at, size;
    for (int handle = 0; handle < 2; handle++)
        if (!take_varint(&p, end, &at) || !take_varint(&p, end, &size) || at > bytes || size > bytes - at ||
            bytes - at - size < TRAILER)
            return false;
    return true;
}

int leveldb_table_check(const char *path, struct err *e)
{
    static const uint8_t magic[] = {0x57, 0xfb, 0x80, 0x8b, 0x24, 0x75, 0x47, 0xdb};
    uint8_t footer[FOOTER];
    struct stat st;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    const bool is_table = fd >= 0 && fstat(fd, &st) == 0 && st.st_size >= FOOTER &&
                          pread(fd, footer, FOOTER, st.st_size - FOOTER) == FOOTER &&
                          memcmp(footer + MAGIC_AT, magic, sizeof magic) == 0;
    if (fd >= 0)
        close(fd);
    if (!is_table || is_within(footer, (uint64_t)st.st_size - FOOTER))
        return 0;
    return err_set(e, ERR_DATA, "'%s' is damaged: its index would lie beyond its %lld bytes", path,
                   (long long)st.st_size);
}
