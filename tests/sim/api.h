/* APIs of homes, modelled: an etcd, a Kubernetes. The functions of common/http/http_client.h are here, in place of
 * those that ask libcurl; who carries a request to the model, and what becomes of it on its way, is the program's to
 * say. */
#ifndef CRUN_TESTS_API_H
#define CRUN_TESTS_API_H

#include <stdbool.h>
#include <stdint.h>

struct buf;
struct http_ask;

struct api_carrier {
    /* A status, or negative; the answer's body in *ret. */
    int (*ask)(const struct http_ask *a, int64_t deadline, struct buf *ret);
    int (*pause)(int64_t ms);
    int64_t (*lag)(void);   /* how old the newest news is that a stream shows; negative: none comes */
    int64_t (*clock)(void); /* the model's, of the news */
    bool kube;              /* of which model the streams are */
};
extern const struct api_carrier *api_carrier;
extern int api_streams; /* begun so far */

/* What clock.h says (api_clock.c); NULL: the time. */
extern int64_t (*api_clock)(void);

/* --- the model of an etcd: one at a time */

struct api_etcd {
    bool gateway;            /* it has one */
    const char *login;       /* that auth/authenticate takes; NULL: no user is needed */
    unsigned tokens;         /* the newest that is good */
    uint64_t cluster;        /* its id */
    int leases;              /* granted so far */
    uint64_t requests, puts; /* so far */
};
extern struct api_etcd api_etcd;

void api_etcd_begin(uint64_t cluster); /* empty */
int api_etcd_serve(const struct http_ask *a, struct buf *ret);
/* The next line of a stream that began so, and shows what happened until `then`. *ret_from moves on. 1, 0. */
int api_etcd_line(const char *request, uint64_t *from, int64_t then, struct buf *ret);
void api_etcd_compact(void);
void api_etcd_expire(void); /* all leases, with their keys */
void api_etcd_end(void);

/* --- that of a Kubernetes */

struct api_kube {
    uint64_t requests, writes; /* so far */
    int refuse, status;        /* so many of the next requests are answered with that status */
    const char *token;         /* that a header must have; NULL: it takes all */
};
extern struct api_kube api_kube;

void api_kube_begin(void);
int api_kube_serve(const struct http_ask *a, struct buf *ret);
int api_kube_line(const char *request, uint64_t *from, int64_t then, struct buf *ret);
void api_kube_compact(void); /* watches from before end with 410 */
int api_kube_maps(void);     /* how many ConfigMaps there are */
void api_kube_lose(void);    /* somebody deletes all ConfigMaps */

#endif
