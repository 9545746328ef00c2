/* CRC32C (Castagnoli), as used by iSCSI, ext4 and SSE4.2. */
#ifndef CRUN_COMMON_CRC32C_H
#define CRUN_COMMON_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* Start with crc = 0; feed the result back to go on with more data. Thread-safe. */
uint32_t crc32c(uint32_t crc, const void *data, size_t n);

/* The same by tables only, as on machines without the instruction; tests compare the two. */
uint32_t crc32c_portable(uint32_t crc, const void *data, size_t n);

#endif
