/* Reaching a Redis as its users name it: redis://[user[:password]@]host[:port][/db], rediss:// (TLS),
 * redis+sentinel://[user[:password]@]host[:port],host[:port].../NAME[/db] (rediss+sentinel:// with TLS to the primary).
 *
 * User and password may be percent-encoded. A password also comes from CRUN_REDIS_PASSWORD_FILE, CRUN_REDIS_PASSWORD
 * or REDISCLI_AUTH: a URL in an argument list is visible to everybody on the machine. A user without any password is
 * refused (for a user that Redis calls nopass, give any word). TLS trusts the authorities of CRUN_REDIS_CA, else of
 * SSL_CERT_FILE, else the system's, and checks that the certificate is for the host named. */
#ifndef CRUN_COMMON_REDIS_LINK_H
#define CRUN_COMMON_REDIS_LINK_H

#include <stdbool.h>
#include <stdint.h>

#include "common/net/resp_conn.h"

struct err;
struct tls_context;

enum { REDIS_HOSTS_MAX = 16 };

struct redis_host {
    char name[256], port[8];
};

struct redis_link {
    bool tls, sentinel;
    bool plain; /* resp://: no greeting */
    char user[128], password[512], master[128];
    int db;
    struct redis_host hosts[REDIS_HOSTS_MAX]; /* of servers, or of sentinels */
    int host_count;
    struct redis_host moved; /* where a Redis Cluster redirected us; "": nowhere */
    struct redis_host now;   /* server of the newest connection */
    struct tls_context *tls_context;
};

/* Parse url, which includes its scheme. -EINVAL with a sentence that never shows a password. Finish with
 * redis_link_finish(), also after a failure. */
int redis_link_parse(struct redis_link *l, const char *url, struct err *e);
void redis_link_finish(struct redis_link *l);

/* Connect c: ask the sentinels, start TLS, AUTH, SELECT. ERR_REFUSED: refused for good; -EAGAIN: may succeed later
 * (LOADING, too many clients, no primary known). */
int redis_link_dial(struct redis_link *l, struct resp_conn *c, int64_t deadline, struct err *e);

/* The code and the sentence for an error reply: ERR_REFUSED for NOAUTH, WRONGPASS, NOPERM; -EROFS for a read-only
 * replica; -EAGAIN for LOADING, CLUSTERDOWN, MASTERDOWN, too many clients, and for MOVED, which the link follows at its
 * next dial; -ENOSPC for OOM; else -EPROTO. */
int redis_link_refused(struct redis_link *l, const char *reply, struct err *e);

/* For log lines: "redis://host:port" without secrets. Into out, which it returns. */
const char *redis_link_name(const struct redis_link *l, char *out, size_t cap);

#endif
