/* libcrun: the round's key-value store, a small blocking client of RESP.
 *
 * - One connection is kept for the next call. A call takes it; if another thread has it, the call dials a new one, so
 *   that no thread waits for another. When a call ends, it keeps its connection if none is kept, and closes it
 *   otherwise.
 * - When the launcher wants the process to stop, its calls end, if it has called crun_stay().
 * - Every call has a deadline. After an error the connection is closed, because the next bytes could belong to any
 *   answer.
 * - A wait is STORE.WAIT, which the server answers when the key is there. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/crun/crun_self.h"
#include "common/include/crun.h"
#include "common/net/dial.h"
#include "common/net/resolve.h"

#define KEY_MAX_BYTES 4096
#define CALL_MS 30000
#define ANSWER_MS 5000 /* for the answer to a wait, beyond the wait's own time */

static atomic_int idle = -1; /* descriptor of the kept connection */

struct link {
    int fd;
    int64_t deadline;
    char in[4096]; /* read, not yet used: in[at..len) */
    size_t at, len;
};

struct text {
    const void *at;
    size_t n;
};

static struct text words(const char *s)
{
    return (struct text){s, strlen(s)};
}

/* Dial "resp://host:port"; a host that contains colons is in brackets. */
static int dial_store(int64_t deadline, int *ret_fd)
{
    char host[256];
    const char *url = libcrun_self.store, *scheme = "resp://";
    if (!url || strncmp(url, scheme, strlen(scheme)) != 0)
        return -ENOTCONN;
    const char *from = url + strlen(scheme), *colon = strrchr(from, ':');
    if (!colon)
        return -ENOTCONN;
    size_t n = (size_t)(colon - from);
    if (n >= 2 && from[0] == '[' && colon[-1] == ']') {
        from++;
        n -= 2;
    }
    if (n == 0 || n >= sizeof host)
        return -ENOTCONN;
    memcpy(host, from, n);
    host[n] = '\0';
    return dial(host, colon + 1, deadline, crun_wake_fd(), ret_fd, NULL);
}

/* True if a kept connection cannot be used: it has ended, was reset, or has sent something unrequested. */
static bool is_of_no_use(int fd)
{
    char byte;
    return recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) >= 0 || (errno != EAGAIN && errno != EINTR);
}

static int link_open(struct link *l, int64_t timeout_ms)
{
    l->at = l->len = 0;
    l->deadline = clock_deadline(timeout_ms);
    l->fd = atomic_exchange(&idle, -1);
    if (l->fd >= 0 && is_of_no_use(l->fd)) {
        close(l->fd);
        l->fd = -1;
    }
    return l->fd >= 0 ? 0 : dial_store(l->deadline, &l->fd);
}

static void link_end(struct link *l, int rc)
{
    int empty = -1;
    const bool sound = rc >= 0 && l->at == l->len;
    if (l->fd >= 0 && !(sound && atomic_compare_exchange_strong(&idle, &empty, l->fd)))
        close(l->fd);
}

void libcrun_store_close(void)
{
    int fd = atomic_exchange(&idle, -1);
    if (fd >= 0)
        close(fd);
}

/* --- bytes */

static int send_all(struct link *l, const void *data, size_t n, int more)
{
    for (const char *p = data; n > 0;) {
        ssize_t sent = send(l->fd, p, n, MSG_NOSIGNAL | MSG_DONTWAIT | more);
        if (sent < 0 && errno == EAGAIN) {
            TRY(wait_fd(l->fd, POLLOUT, l->deadline, crun_wake_fd(), NULL));
        } else if (sent < 0 && errno != EINTR) {
            return -EIO;
        } else if (sent > 0) {
            p += sent;
            n -= (size_t)sent;
        }
    }
    return 0;
}

static int fill(struct link *l)
{
    for (;;) {
        ssize_t n = recv(l->fd, l->in, sizeof l->in, MSG_DONTWAIT);
        if (n > 0) {
            l->at = 0;
            l->len = (size_t)n;
            return 0;
        }
        if (n == 0 || (errno != EAGAIN && errno != EINTR))
            return -EIO;
        TRY(wait_fd(l->fd, POLLIN, l->deadline, crun_wake_fd(), NULL));
    }
}

static int read_byte(struct link *l, char *ret)
{
    if (l->at == l->len)
        TRY(fill(l));
    *ret = l->in[l->at++];
    return 0;
}

/* Read one line without its end. Bytes beyond `cap` are dropped (only error messages are that long). */
static int read_line(struct link *l, char *out, size_t cap)
{
    size_t n = 0;
    char c;
    for (;;) {
        TRY(read_byte(l, &c));
        if (c == '\n')
            break;
        if (c != '\r' && n + 1 < cap)
            out[n++] = c;
    }
    out[n] = '\0';
    return 0;
}

static int read_value(struct link *l, size_t bytes, char *out, size_t cap)
{
    char c;
    for (size_t i = 0; i < bytes + 2; i++) { /* plus the line's end */
        TRY(read_byte(l, &c));
        if (i < bytes && i < cap)
            out[i] = c;
    }
    return 0;
}

/* --- requests */

static int ask(struct link *l, const struct text *args, int n)
{
    char head[64];
    TRY(send_all(l, head, (size_t)snprintf(head, sizeof head, "*%d\r\n", n), MSG_MORE));
    for (int i = 0; i < n; i++) {
        TRY(send_all(l, head, (size_t)snprintf(head, sizeof head, "$%zu\r\n", args[i].n), MSG_MORE));
        TRY(send_all(l, args[i].at, args[i].n, MSG_MORE));
        TRY(send_all(l, "\r\n", 2, i + 1 < n ? MSG_MORE : 0));
    }
    return 0;
}

/* Read an answer. *ret: an integer's value, or a string's length (-1: nil); 0 for a status. */
static int answer(struct link *l, char *out, size_t cap, int64_t *ret)
{
    char line[64], *end;
    TRY(read_line(l, line, sizeof line));
    *ret = 0;
    if (line[0] == '+')
        return 0;
    if (line[0] != ':' && line[0] != '$')
        return -EPROTO;
    *ret = strtoll(line + 1, &end, 10);
    if (end == line + 1 || *end || (line[0] == '$' && (*ret < -1 || *ret > CRUN_VALUE_MAX * 4LL)))
        return -EPROTO;
    return line[0] == '$' && *ret >= 0 ? read_value(l, (size_t)*ret, out, cap) : 0;
}

static int call(struct link *l, const struct text *args, int n, int64_t *ret)
{
    TRY(ask(l, args, n));
    return answer(l, NULL, 0, ret);
}

static int one_call(const struct text *args, int n, int64_t *ret)
{
    struct link l;
    if (args[1].n == 0 || args[1].n > KEY_MAX_BYTES)
        return -EINVAL;
    int rc = link_open(&l, CALL_MS);
    if (rc == 0)
        rc = call(&l, args, n, ret);
    link_end(&l, rc);
    return rc;
}

int crun_set(const char *key, const void *value, size_t bytes)
{
    int64_t ignored;
    if (bytes > CRUN_VALUE_MAX)
        return -EMSGSIZE;
    return one_call((struct text[]){words("SET"), words(key), {value, bytes}}, 3, &ignored);
}

int crun_add(const char *key, int64_t delta, int64_t *ret_sum)
{
    char number[24];
    int64_t sum;
    snprintf(number, sizeof number, "%" PRId64, delta);
    TRY(one_call((struct text[]){words("INCRBY"), words(key), words(number)}, 3, &sum));
    if (ret_sum)
        *ret_sum = sum;
    return 0;
}

int crun_delete(const char *key)
{
    int64_t n;
    TRY(one_call((struct text[]){words("DEL"), words(key)}, 2, &n));
    return n > 0;
}

static int wait_for(struct link *l, const char *key, double timeout_s)
{
    char ms[24];
    int64_t there;
    snprintf(ms, sizeof ms, "%.0f", ceil(timeout_s * 1000));
    TRY(call(l, (struct text[]){words("STORE.WAIT"), words(key), words(ms)}, 3, &there));
    return there ? 0 : -ETIMEDOUT;
}

static int64_t wait_ms(double timeout_s)
{
    return (int64_t)(timeout_s * 1000) + ANSWER_MS;
}

int crun_get(const char *key, void *out, size_t capacity, size_t *ret_bytes, double timeout_s)
{
    struct link l;
    int64_t n = -1;
    const size_t length = strlen(key);
    if (length == 0 || length > KEY_MAX_BYTES || !libcrun_is_time(timeout_s))
        return -EINVAL;
    int rc = link_open(&l, wait_ms(timeout_s));
    if (rc == 0)
        rc = wait_for(&l, key, timeout_s);
    if (rc == 0)
        rc = ask(&l, (struct text[]){words("GET"), words(key)}, 2);
    if (rc == 0)
        rc = answer(&l, out, capacity, &n);
    link_end(&l, rc);
    if (rc == 0 && n < 0) /* deleted between the two requests */
        return -ENOENT;
    if (rc == 0)
        *ret_bytes = (size_t)n;
    return rc;
}

/* Each rank adds 1 to a counter. The last rank of a turn sets the key that ends that turn. */
int crun_barrier(const char *name, double timeout_s)
{
    char key[KEY_MAX_BYTES + 1];
    struct link l;
    int64_t come, ignored;
    const int world = libcrun_self.world;
    if (!*name || strlen(name) > KEY_MAX_BYTES - 64 || !libcrun_is_time(timeout_s))
        return -EINVAL;
    if (world <= 1)
        return 0;
    snprintf(key, sizeof key, "crun/barrier/%s", name);
    int rc = link_open(&l, wait_ms(timeout_s));
    if (rc == 0)
        rc = call(&l, (struct text[]){words("INCRBY"), words(key), words("1")}, 3, &come);
    if (rc == 0) {
        snprintf(key, sizeof key, "crun/barrier/%s/%" PRId64, name, (come - 1) / world);
        rc = come % world == 0 ? call(&l, (struct text[]){words("SET"), words(key), words("1")}, 3, &ignored)
                               : wait_for(&l, key, timeout_s);
    }
    link_end(&l, rc);
    return rc;
}
