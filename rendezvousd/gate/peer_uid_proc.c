/* Reads the table of TCP connections for the one with these ends (peer_uid_proc.h). A line of it is
 * "sl local:port remote:port state queues timer:when retransmits uid timeout inode ...". */
#include "rendezvousd/gate/peer_uid_proc.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "common/net/addr.h"

#define END_MAX 48

/* As the kernel prints it: words of 32 bits as they lie in memory, in hexadecimal. */
static void put_end(const uint8_t *ip, uint16_t port, bool v4, char out[END_MAX])
{
    int n = 0;
    for (int at = v4 ? 12 : 0; at < ADDR_BYTES; at += 4) {
        uint32_t word;
        memcpy(&word, ip + at, sizeof word);
        n += snprintf(out + n, (size_t)(END_MAX - n), "%08X", (unsigned)word);
    }
    snprintf(out + n, (size_t)(END_MAX - n), ":%04X", (unsigned)port);
}

static int find(const char *path, const char *local, const char *remote, uid_t *ret)
{
    char line[512], a[END_MAX], b[END_MAX];
    unsigned uid;
    unsigned long inode;
    int rc = -ENOENT;
    FILE *f = fopen(path, "re");
    if (!f)
        return -errno;
    while (rc == -ENOENT && fgets(line, sizeof line, f))
        if (sscanf(line, "%*s %47s %47s %*s %*s %*s %*s %u %*s %lu", a, b, &uid, &inode) == 4 &&
            strcmp(a, local) == 0 && strcmp(b, remote) == 0 && inode != 0) { /* 0: closed, without an owner */
            *ret = (uid_t)uid;
            rc = 0;
        }
    fclose(f);
    return rc;
}

int peer_uid_proc(const uint8_t *peer_ip, uint16_t peer_port, const uint8_t *own_ip, uint16_t own_port, uid_t *ret)
{
    char local[END_MAX], remote[END_MAX];
    int rc = -ENOENT;
    if (addr_is_v4(peer_ip)) {
        put_end(peer_ip, peer_port, true, local);
        put_end(own_ip, own_port, true, remote);
        rc = find("/proc/net/tcp", local, remote, ret);
    }
    if (rc == -ENOENT) { /* a v6 socket may have connected to a v4 address */
        put_end(peer_ip, peer_port, false, local);
        put_end(own_ip, own_port, false, remote);
        rc = find("/proc/net/tcp6", local, remote, ret);
    }
    return rc;
}
