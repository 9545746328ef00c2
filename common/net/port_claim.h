/* The claim of a rendezvousd on its port, which outlives it: while it is restarted no crun of this host hosts a job
 * there. A file FOLDER/PORT, written anew every PORT_CLAIM_RENEW_MS; it counts for PORT_CLAIM_MS after that, so what a
 * dead daemon left blocks nobody for ever. FOLDER is
 *
 *   /run/rendezvousd             of root, or made by systemd for the unit's user: all believe it
 *   /run/user/UID/rendezvousd    of user UID: believed by the same user
 *   /tmp/rendezvousd-UID         of user UID without the above, and of root (UID 0): by the same user; root's by all
 *
 * It must belong to that user and be closed to group and others, and so must the file. */
#ifndef CRUN_COMMON_PORT_CLAIM_H
#define CRUN_COMMON_PORT_CLAIM_H

#include <stdbool.h>
#include <stddef.h>

struct err;

#define PORT_CLAIM_RENEW_MS 15000
#define PORT_CLAIM_MS 75000 /* a minute, as long as a daemon waits for its port, after the last renewal */
#define PORT_CLAIM_FOLDER_MAX 64

struct port_claim {
    char folder[PORT_CLAIM_FOLDER_MAX]; /* "": there is no claim */
    int port;
    bool stays; /* a supervisor made the folder, and removes it when the daemon is not to come back */
};

/* runtime_dir: folders that a supervisor made, as in RUNTIME_DIRECTORY, or NULL; the first one is taken if it is one of
 * the above. -errno. Blocks on the disk, as all do. */
int port_claim_make(struct port_claim *c, int port, const char *runtime_dir, struct err *e);
void port_claim_renew(const struct port_claim *c);
void port_claim_drop(struct port_claim *c); /* at an end in good order; without a claim nothing happens */

/* Whether a daemon that we believe has this port, or comes back to it. folder: of its claim. */
bool port_claim_is_held(int port, char folder[PORT_CLAIM_FOLDER_MAX]);

#endif
