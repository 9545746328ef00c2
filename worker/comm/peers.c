/* Exchanges the records of the ranks of a communicator by way of the store. */
#include "worker/comm/peers.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/net/own_address.h"
#include "common/store/store.h"
#include "worker/device/device.h"

enum { KEY_LEN = 160, LAST_LOOK_MS = 1000 };

static int64_t left(int64_t deadline)
{
    int64_t ms = deadline - clock_ms();
    return ms > 1 ? ms : 1;
}

static void key_of(char out[KEY_LEN], const struct comm_options *o, const char *what, int rank)
{
    snprintf(out, KEY_LEN, "comm/%s/%s/%d", o->name, what, rank);
}

/* After the deadline: who is not there? */
static int name_missing(const struct comm_options *o, const char *what, struct err *e)
{
    char list[256] = "", key[KEY_LEN];
    size_t len = 0;
    int absent = 0;
    int64_t until = clock_ms() + LAST_LOOK_MS;
    for (int r = 0; r < o->world; r++) {
        struct buf value = {0};
        key_of(key, o, what, r);
        int rc = store_get(o->store, key, &value, left(until), e);
        buf_free(&value);
        if (rc < 0 && rc != -ENOENT)
            return rc;
        if (rc < 0 && ++absent > 0 && len < sizeof list - 16)
            len += (size_t)snprintf(list + len, sizeof list - len, " %d", r);
    }
    return err_set(e, -ETIMEDOUT, "%d of %d ranks did not come within %lld ms: rank%s", absent, o->world,
                   (long long)o->timeout_ms, list);
}

static int wait_for_all(const struct comm_options *o, const char *what, int64_t deadline, struct err *e)
{
    size_t world = (size_t)o->world;
    char(*text)[KEY_LEN] = calloc(world, sizeof *text);
    const char **keys = calloc(world, sizeof *keys);
    int rc = text && keys ? 0 : err_set(e, -ENOMEM, "no memory for %d keys", o->world);
    if (rc == 0) {
        for (size_t r = 0; r < world; r++) {
            key_of(text[r], o, what, (int)r);
            keys[r] = text[r];
        }
        rc = store_wait(o->store, keys, world, left(deadline), e);
    }
    free(keys);
    free(text);
    return rc == -ETIMEDOUT ? name_missing(o, what, e) : rc;
}

static int fetch(const struct comm_options *o, const char *what, int rank, size_t max, int64_t deadline, char **ret,
                 struct err *e)
{
    char key[KEY_LEN];
    struct buf value;
    buf_init(&value, max);
    key_of(key, o, what, rank);
    int rc = store_get(o->store, key, &value, left(deadline), e);
    if (rc == 0) {
        *ret = strndup(value.data ? value.data : "", value.len);
        if (!*ret)
            rc = err_set(e, -ENOMEM, "no memory for a record of %zu bytes", value.len);
    }
    buf_free(&value);
    return rc;
}

/* Over a communicator that is open: records of equal length travel as messages. */
static int exchange_through(const struct comm_options *o, const char *mine, size_t max, char **all, struct err *e)
{
    struct comm *c = o->through;
    struct comm_request *requests[2 * o->world];
    int n = 0, rc = 0;
    snprintf(all[o->rank], max + 1, "%s", mine);
    for (int i = 1; rc == 0 && i < o->world; i++) {
        const int to = (o->rank + i) % o->world, from = (o->rank + o->world - i) % o->world;
        rc = c->ops->irecv(c, COMM_CONTROL, all[from], max + 1, o->ranks[from], NULL, &requests[n], e);
        n += rc == 0;
        if (rc == 0)
            rc = c->ops->isend(c, COMM_CONTROL, all[o->rank], max + 1, o->ranks[to], NULL, &requests[n], e);
        n += rc == 0;
    }
    return comm_wait_all(requests, n, rc, e);
}

static int exchange_records(const struct comm_options *o, const char *mine, size_t max, char ***ret, struct err *e)
{
    char **all = calloc((size_t)o->world, sizeof *all);
    bool ok = all;
    for (int r = 0; ok && r < o->world; r++)
        ok = (all[r] = calloc(1, max + 1)) != NULL;
    int rc = ok ? exchange_through(o, mine, max, all, e) : err_set(e, -ENOMEM, "no memory for %d records", o->world);
    for (int r = 0; rc == 0 && r < o->world; r++)
        all[r][max] = '\0'; /* a peer's */
    if (rc < 0)
        peers_free(all, o->world);
    else
        *ret = all;
    return rc;
}

int peers_exchange(const struct comm_options *o, const char *what, const char *mine, size_t max, int64_t deadline,
                   char ***ret, struct err *e)
{
    char key[KEY_LEN];
    if (o->through)
        return exchange_records(o, mine, max, ret, e);
    if (strlen(o->name) > KEY_LEN / 2)
        return err_set(e, -EINVAL, "the communicator's name '%.40s...' is longer than %d bytes", o->name, KEY_LEN / 2);
    key_of(key, o, what, o->rank);
    TRY(store_set(o->store, key, mine, strlen(mine), left(deadline), e));
    TRY(wait_for_all(o, what, deadline, e));
    char **all = calloc((size_t)o->world, sizeof *all);
    if (!all)
        return err_set(e, -ENOMEM, "no memory for %d records", o->world);
    for (int r = 0; r < o->world; r++) {
        int rc = fetch(o, what, r, max, deadline, &all[r], e);
        if (rc < 0) {
            peers_free(all, o->world);
            return rc;
        }
    }
    *ret = all;
    return 0;
}

void peers_free(char **records, int world)
{
    if (!records)
        return;
    for (int r = 0; r < world; r++)
        free(records[r]);
    free(records);
}

/* The local address from which packets to `to` leave: connecting a datagram socket asks the routing table and sends
 * nothing. -errno if there is no route. */
static int route_to(const char *to, char ret[PEERS_ADDRESS_LEN])
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_DGRAM};
    struct addrinfo *ai = NULL;
    if (getaddrinfo(to, "9", &hints, &ai) != 0)
        return -EINVAL;
    int rc = -EADDRNOTAVAIL;
    int fd = socket(ai->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd >= 0) {
        struct sockaddr_storage own;
        socklen_t len = sizeof own;
        if (connect(fd, ai->ai_addr, ai->ai_addrlen) == 0 && getsockname(fd, (struct sockaddr *)&own, &len) == 0 &&
            getnameinfo((struct sockaddr *)&own, len, ret, PEERS_ADDRESS_LEN, NULL, 0, NI_NUMERICHOST) == 0)
            rc = 0;
        close(fd);
    }
    freeaddrinfo(ai);
    return rc;
}

/* 192.0.2.0/24 and 2001:db8::/32 belong to nobody. */
void peers_default_address(char ret[PEERS_ADDRESS_LEN])
{
    if (route_to("192.0.2.1", ret) < 0 && route_to("2001:db8::1", ret) < 0 && !own_address(ret))
        snprintf(ret, PEERS_ADDRESS_LEN, "127.0.0.1");
}

void peers_host_identity(char *out, size_t cap)
{
    char boot[64] = "?";
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (f) {
        if (fscanf(f, "%63s", boot) != 1)
            strcpy(boot, "?");
        fclose(f);
    }
    struct stat st = {0};
    (void)stat("/proc/self/ns/net", &st);
    snprintf(out, cap, "%s:%llu", boot, (unsigned long long)st.st_ino);
}

enum { GPU_LEN = 64, HOST_RECORD_BYTES = 320 };

/* gpu: its UUID; "-": none to compare (gpu_of_its_own()). */
struct host_record {
    int world;
    char identity[128];
    char boot[128]; /* its first word, up to a colon: what ranks in containers of one machine have in common */
    char address[PEERS_ADDRESS_LEN];
    char gpu[GPU_LEN];
};

static int parse_host(const char *text, int rank, struct host_record *ret, struct err *e)
{
    if (sscanf(text, "%d %127s %63s %63s", &ret->world, ret->identity, ret->address, ret->gpu) != 4)
        return err_set(e, -EPROTO, "the host record of rank %d is '%.60s': expected world, identity, address and GPU",
                       rank, text);
    snprintf(ret->boot, sizeof ret->boot, "%.*s", (int)strcspn(ret->identity, ":"), ret->identity);
    return 0;
}

static int parse_hosts(const struct comm_options *o, char *const *all, struct host_record *ret, struct err *e)
{
    for (int r = 0; r < o->world; r++) {
        TRY(parse_host(all[r], r, &ret[r], e));
        if (ret[r].world != o->world)
            return err_set(e, ERR_MISMATCH, "rank %d was started for a world of %d, rank %d for one of %d", r,
                           ret[r].world, o->rank, o->world);
    }
    return 0;
}

static int check_gpus(const struct host_record *hosts, int world, struct err *e)
{
    struct gpu_taken *taken = calloc((size_t)world, sizeof *taken);
    if (!taken)
        return err_set(e, -ENOMEM, "no memory for %d ranks", world);
    for (int r = 0; r < world; r++)
        taken[r] = (struct gpu_taken){hosts[r].boot, strcmp(hosts[r].gpu, "-") == 0 ? NULL : hosts[r].gpu};
    const int rc = gpu_check_taken(taken, world, e);
    free(taken);
    return rc;
}

static int choose(const struct comm_options *o, const char *identity, const struct host_record *hosts,
                  char ret[PEERS_ADDRESS_LEN], struct err *e)
{
    bool routed = false;
    for (int r = 0; r < o->world; r++) {
        if (routed || o->bind_addr || strcmp(hosts[r].identity, identity) == 0)
            continue;
        if (route_to(hosts[r].address, ret) < 0)
            return err_set(e, -EADDRNOTAVAIL, "no route to rank %d at %s; name the local address to use", r,
                           hosts[r].address);
        routed = true;
    }
    if (!routed)
        snprintf(ret, PEERS_ADDRESS_LEN, "%s", o->bind_addr ? o->bind_addr : "127.0.0.1");
    return 0;
}

/* An address that cannot be bound is reported here, in our words. */
static int check_local(const char *address, struct err *e)
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM}, *ai = NULL;
    int rc = getaddrinfo(address, NULL, &hints, &ai);
    if (rc != 0)
        return err_set(e, -EADDRNOTAVAIL, "the local address '%s' cannot be resolved: %s", address, gai_strerror(rc));
    rc = 0;
    int fd = socket(ai->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, ai->ai_addr, ai->ai_addrlen) < 0)
        rc = err_errno(e, errno, "'%s' is not an address of this machine", address);
    if (fd >= 0)
        close(fd);
    freeaddrinfo(ai);
    return rc;
}

/* "-": it computes on the host, may share, its UUID is not known, or the ranks have met before (through) and compared
 * theirs then. */
static const char *gpu_of_its_own(const struct comm_options *o)
{
    const struct device *d = o->through || o->shares_device ? NULL : o->device;
    const char *uuid = d && d->ops->uuid ? d->ops->uuid(d) : "";
    return *uuid ? uuid : "-";
}

int peers_address(const struct comm_options *o, int64_t deadline, char ret[PEERS_ADDRESS_LEN], struct err *e)
{
    struct host_record mine = {.world = o->world}, *hosts;
    peers_host_identity(mine.identity, sizeof mine.identity);
    if (o->bind_addr && strlen(o->bind_addr) >= sizeof mine.address)
        return err_set(e, -EINVAL, "the address '%.60s...' is too long", o->bind_addr);
    if (o->bind_addr)
        snprintf(mine.address, sizeof mine.address, "%s", o->bind_addr);
    else
        peers_default_address(mine.address);
    char text[HOST_RECORD_BYTES], **all = NULL;
    snprintf(text, sizeof text, "%d %s %s %s", mine.world, mine.identity, mine.address, gpu_of_its_own(o));
    TRY(peers_exchange(o, "host", text, sizeof text, deadline, &all, e));
    hosts = calloc((size_t)o->world, sizeof *hosts);
    int rc = hosts ? parse_hosts(o, all, hosts, e) : err_set(e, -ENOMEM, "no memory for %d hosts", o->world);
    if (rc == 0)
        rc = check_gpus(hosts, o->world, e);
    if (rc == 0)
        rc = choose(o, mine.identity, hosts, ret, e);
    free(hosts);
    peers_free(all, o->world);
    return rc < 0 ? rc : check_local(ret, e);
}
