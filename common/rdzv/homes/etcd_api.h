/* The JSON gateway of an etcd's v3 API: requests to one member after the other, users and their tokens. Of the home
 * (rdzv_log_etcd.c) alone. One thread. */
#ifndef CRUN_COMMON_ETCD_API_H
#define CRUN_COMMON_ETCD_API_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#include "common/base/buf.h"
#include "common/json/json.h"
#include "common/rdzv/homes/rdzv_home.h"

struct err;
struct http_client;

#define ETCD_HOSTS_MAX 16
#define ETCD_REQUEST_MS 500
#define ETCD_BYTES_PER_MS 1500 /* and so much longer for a long one */

struct etcd_api {
    struct http_client *http;
    char *dir;                            /* "PREFIX/RUN/" */
    int64_t deadline, request_ms;         /* of the calls below; of one request to one member */
    char answered[RDZV_IDENTITY_MAX + 1]; /* the cluster of the newest answer */
    bool moved;                           /* another member is asked than the one that is watched */
    struct buf out;                       /* the next request */
    int rc;                               /* of what was added to it */
    /* private */
    char *hosts[ETCD_HOSTS_MAX]; /* "https://10.0.0.1:2379" */
    int host_count, at;
    char login[700], auth[700]; /* {"name":...}, the header with a token; "": none */
    struct buf in;
};

/* url: "etcd[s]://HOST[:PORT],...[/PREFIX]". -EINVAL with a sentence: it, or the file of the user, is malformed.
 * -ENOENT: there is no libcurl. A zeroed struct, and one that could not be opened, may be closed. */
int etcd_api_open(struct etcd_api *a, const char *url, const char *run_id, int cancel_fd, struct err *e);
void etcd_api_close(struct etcd_api *a);

void etcd_api_start(struct etcd_api *a); /* another request */
#define ETCD_PUT(a, ...) ((a)->rc = (a)->rc ? (a)->rc : buf_printf(&(a)->out, __VA_ARGS__))

/* Ask what is in a->out, of one member after the other, until one answers. *ret: its answer, the caller's. -ENOKEY: a
 * lease that it names has ended; ERR_REFUSED: so is it, for good; -ENOSPC; -EAGAIN and others: nobody has answered. */
int etcd_api_call(struct etcd_api *a, const char *path, cJSON **ret, struct err *e);
/* Begin to watch, as a->out says: lines by http_client_line(). */
int etcd_api_watch(struct etcd_api *a, struct err *e);

static inline const cJSON *etcd_api_in(const cJSON *o, const char *name)
{
    return cJSON_GetObjectItemCaseSensitive(o, name);
}

static inline int64_t etcd_api_number(const cJSON *o, const char *name) /* a text there, and left out if it is 0 */
{
    return strtoll(json_str_or(o, name, "0"), NULL, 10);
}

#endif
