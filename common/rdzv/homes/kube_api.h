/* The API of a Kubernetes, as a pod asks it: requests with the token of its service account, and what one Lease and its
 * ConfigMaps are called there. Of the home (rdzv_log_kube.c) alone. One thread. */
#ifndef CRUN_COMMON_KUBE_API_H
#define CRUN_COMMON_KUBE_API_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/buf.h"
#include "common/json/json.h"
#include "common/json/json_write.h"

struct err;
struct http_client;

#define KUBE_NAME_MAX 63 /* characters of a label's value, so of a Lease's name here */
#define KUBE_PATH_MAX 700
#define KUBE_TIME_MAX 40

struct kube_api {
    struct http_client *http;
    char space[KUBE_NAME_MAX + 1], name[KUBE_NAME_MAX + 1]; /* the Lease's namespace and name */
    int64_t deadline;                                       /* of the calls below */
    struct buf out;                                         /* the body of the next request */
    /* private */
    char server[300], files[200];
    char auth[4200];  /* the header with the token */
    int64_t token_ms; /* when it was read */
    struct buf in;
};

/* url: "k8s://[NAMESPACE/]NAME". -EINVAL with a sentence: malformed; this is no pod. -ENOENT: there is no libcurl. A
 * zeroed struct, and one that could not be opened, may be closed. */
int kube_api_open(struct kube_api *a, const char *url, int cancel_fd, struct err *e);
void kube_api_close(struct kube_api *a);

/* Paths; out, of KUBE_PATH_MAX bytes, is returned. */
const char *kube_api_lease(const struct kube_api *a, bool one, char *out); /* else: all in the namespace */
const char *kube_api_map(const struct kube_api *a, const char *name, size_t n, char *out); /* n 0: all */

/* Begin an object in a->out: with the Lease's label and the owner (CRUN_K8S_OWNER), up to the rest of its metadata. */
struct json_write kube_api_object(struct kube_api *a, const char *version, const char *kind, const char *name);

/* One request; its body is a->out, if `body`. *ret (NULL allowed): the object of an answer below 300. Returns the
 * status if that is below 300, 404 or 409; else negative, after it was asked again: -EPERM, a rule is missing;
 * -ETIMEDOUT, where there is a body: at once, and whoever asked reads what has happened. */
int kube_api_call(struct kube_api *a, const char *method, const char *path, bool body, cJSON **ret, struct err *e);
/* What carries that label, of Leases or of ConfigMaps; the caller's. NULL: there is no answer, or no rule for it. */
cJSON *kube_api_list(struct kube_api *a, bool leases, const char *label, const char *value);
/* Delete that Lease as it is in that version. 200; 404, 409: it is not. */
int kube_api_delete(struct kube_api *a, const char *name, const char *version);
/* A time as the API writes it: for people, and for whoever clears away. Returns out. */
const char *kube_api_time(char out[KUBE_TIME_MAX], int64_t from_now_s);
/* Begin to watch the Lease from that version on: lines by http_client_line(). */
int kube_api_watch(struct kube_api *a, const char *version, struct err *e);
int kube_api_cannot_watch(const struct kube_api *a, struct err *e); /* the stream's status was 403. -EPERM */

static inline const cJSON *kube_api_in(const cJSON *o, const char *name)
{
    return cJSON_GetObjectItemCaseSensitive(o, name);
}

#endif
