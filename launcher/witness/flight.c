/* Asks PyTorch's Flight Recorder of a process, and compares the calls of ranks (flight.h). */
#include "launcher/witness/flight.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/json/json.h"
#include "launcher/guard/procs.h"

#define REQUEST "POST /handler/%s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
#define NEWEST 256 /* number of calls that are compared: the one that hangs is among the last */

/* --- the debug socket: HTTP over a Unix socket */

static bool wait_for(int fd, short events, int64_t end_ms)
{
    struct pollfd p = {.fd = fd, .events = events};
    const int64_t left = end_ms - clock_ms();
    return left > 0 && poll(&p, 1, (int)left) == 1;
}

static int dial(const char *path, int64_t end_ms)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof to.sun_path)
        return -1;
    memcpy(to.sun_path, path, strlen(path) + 1);
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0 && connect(fd, (const struct sockaddr *)&to, sizeof to) < 0 && errno != EINPROGRESS) {
        close(fd);
        return -1;
    }
    if (fd >= 0 && !wait_for(fd, POLLOUT, end_ms)) {
        close(fd);
        return -1;
    }
    return fd;
}

/* Send a request and read the body of an answer with status 200, until the connection is closed. */
static bool post(const char *path, const char *handler, int64_t end_ms, struct buf *out)
{
    char request[256];
    ssize_t n = snprintf(request, sizeof request, REQUEST, handler);
    const int fd = dial(path, end_ms);
    if (fd < 0)
        return false;
    n = send(fd, request, (size_t)n, MSG_NOSIGNAL) == n ? 1 : -1;
    while (n > 0 && wait_for(fd, POLLIN, end_ms) && buf_reserve(out, 65536) == 0 &&
           (n = recv(fd, out->data + out->len, 65536, 0)) > 0)
        out->len += (size_t)n;
    close(fd);
    if (n != 0 || buf_add(out, "", 1) < 0) /* it did not end */
        return false;
    out->len--;
    const char *body = strstr(out->data, "\r\n\r\n");
    if (!body || strncmp(out->data, "HTTP/1.", 7) != 0 || strncmp(out->data + 8, " 200 ", 5) != 0)
        return false;
    buf_consume(out, (size_t)(body + 4 - out->data));
    return true;
}

/* Ask NCCL's recorder, then those of other back ends, until one has an entry. */
static bool ask_socket(const char *path, int64_t end_ms, struct buf *out)
{
    static const char *const handlers[] = {"dump_nccl_trace_json", "fr_trace_json?backend=nccl", "fr_trace_json"};
    for (size_t i = 0; i < sizeof handlers / sizeof *handlers; i++) {
        buf_clear(out);
        if (post(path, handlers[i], end_ms, out) && out->len && strstr(out->data, "\"entries\":["))
            return true;
    }
    buf_clear(out);
    return false;
}

/* --- pipe and dumps */

/* Its value; NULL: it is not set, or empty. */
static const char *set_variable(const struct buf *env, const char *name)
{
    const char *value = proc_variable(env, name);
    return value && *value ? value : NULL;
}

static bool poke_pipe(const char *stem, int rank)
{
    char path[4096];
    struct stat s;
    if (snprintf(path, sizeof path, "%s%d.pipe", stem, rank) >= (int)sizeof path)
        return false;
    const int fd = open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW);
    const bool good = fd >= 0 && fstat(fd, &s) == 0 && S_ISFIFO(s.st_mode) && write(fd, "1\n", 2) == 2;
    if (fd >= 0)
        close(fd);
    return good;
}

enum flight_way flight_ask(pid_t pid, int rank, int64_t end_ms, struct buf *out)
{
    struct buf env = proc_file(pid, "environ");
    enum flight_way way = FLIGHT_NONE;
    const char *socket_path = set_variable(&env, "TORCH_WORKER_SERVER_SOCKET");
    const char *pipe = set_variable(&env, "TORCH_NCCL_DEBUG_INFO_PIPE_FILE");
    const char *dump = set_variable(&env, FLIGHT_DUMP_VARIABLE);
    dump = dump ? dump : set_variable(&env, FLIGHT_DUMP_OLD);
    if (out->max == 0)
        out->max = FLIGHT_MAX;
    if (socket_path && ask_socket(socket_path, end_ms, out)) {
        way = FLIGHT_SOCKET;
    } else if (dump && buf_printf(out, "%s%d", dump, rank) == 0) {
        way = pipe && poke_pipe(pipe, rank) ? FLIGHT_PIPE : access(out->data, R_OK) == 0 ? FLIGHT_DUMP : FLIGHT_NONE;
        if (way == FLIGHT_NONE)
            buf_clear(out);
    }
    buf_free(&env);
    return way;
}

/* --- comparing */

struct call {
    const char *group, *what; /* "default_pg", "nccl:all_reduce" */
    int id;                   /* of collectives of the group */
    char *sizes, *types;      /* as JSON */
};

/* In these calls all ranks must pass the same number of values of one type; other calls may differ. */
static bool is_even(const char *what)
{
    static const char *const even[] = {"all_reduce",           "broadcast",          "reduce",  "_all_gather_base",
                                       "_reduce_scatter_base", "all_reduce_barrier", "barrier", "allreduce_coalesced"};
    const char *name = strrchr(what, ':');
    for (size_t i = 0; i < sizeof even / sizeof *even; i++)
        if (strcmp(name ? name + 1 : what, even[i]) == 0)
            return true;
    return false;
}

static const cJSON *member(const cJSON *o, const char *name)
{
    return cJSON_GetObjectItemCaseSensitive(o, name);
}

/* Parse a call. False: it is not a collective. free_call() frees the texts. */
static bool read_call(const cJSON *entry, struct call *ret)
{
    const cJSON *group = member(entry, "process_group");
    const char *name = cJSON_GetStringValue(cJSON_GetArrayItem(group, 1));
    *ret = (struct call){.group = name && *name ? name : cJSON_GetStringValue(cJSON_GetArrayItem(group, 0)),
                         .what = json_str_or(entry, "profiling_name", ""),
                         .id = json_int_or(entry, "collective_seq_id", -1)};
    if (!ret->group || ret->id < 0 || cJSON_IsTrue(member(entry, "is_p2p")))
        return false;
    ret->sizes = cJSON_PrintUnformatted(member(entry, "input_sizes"));
    ret->types = cJSON_PrintUnformatted(member(entry, "input_dtypes"));
    return true;
}

static void free_call(struct call *c)
{
    free(c->sizes);
    free(c->types);
}

static bool same_text(const char *a, const char *b)
{
    return a == b || (a && b && strcmp(a, b) == 0);
}

static bool differ(const struct call *a, const struct call *b)
{
    return !same_text(a->what, b->what) ||
           (is_even(a->what) && (!same_text(a->sizes, b->sizes) || !same_text(a->types, b->types)));
}

/* The same call of another rank. */
static bool find_call(const cJSON *tree, const struct call *like, struct call *ret)
{
    const cJSON *entry;
    cJSON_ArrayForEach(entry, member(tree, "entries"))
    {
        if (json_int_or(entry, "collective_seq_id", -1) != like->id || !read_call(entry, ret))
            continue;
        if (strcmp(ret->group, like->group) == 0)
            return true;
        free_call(ret);
    }
    return false;
}

static void printable(char *text)
{
    for (; *text; text++)
        *text = (unsigned char)*text < 0x20 || (unsigned char)*text > 0x7e ? '?' : *text;
}

/* Compare one call over all ranks; the smaller group is called different. */
static bool compare(const struct flight_trace *v, int n, const struct call *c, char *out, size_t cap)
{
    struct call other, shown = {0};
    int alike = 0, unlike = 0, rank_alike = -1, rank_unlike = -1;
    for (int i = 0; i < n; i++) {
        if (!v[i].tree || !find_call(v[i].tree, c, &other))
            continue;
        const bool odd = differ(c, &other);
        *(odd ? &rank_unlike : &rank_alike) = v[i].rank;
        *(odd ? &unlike : &alike) += 1;
        if (odd && unlike == 1)
            shown = other;
        else
            free_call(&other);
    }
    if (unlike > 0) {
        const bool c_is_odd = alike < unlike;
        const struct call *few = c_is_odd ? c : &shown, *many = c_is_odd ? &shown : c;
        snprintf(out, cap,
                 "rank %d calls %.40s %d of group %.40s with %.40s %.60s; %d rank%s call%s %.40s with %.40s %.60s",
                 c_is_odd ? rank_alike : rank_unlike, few->what, few->id, few->group, few->types ? few->types : "?",
                 few->sizes ? few->sizes : "?", c_is_odd ? unlike : alike, (c_is_odd ? unlike : alike) > 1 ? "s" : "",
                 (c_is_odd ? unlike : alike) > 1 ? "" : "s", many->what, many->types ? many->types : "?",
                 many->sizes ? many->sizes : "?");
        printable(out);
    }
    free_call(&shown);
    return unlike > 0;
}

bool flight_mismatch(const struct flight_trace *v, int n, char *out, size_t cap)
{
    const cJSON *entry;
    for (int i = 0; i < n; i++) {
        if (!v[i].tree)
            continue;
        int skipped = cJSON_GetArraySize(member(v[i].tree, "entries")) - NEWEST;
        cJSON_ArrayForEach(entry, member(v[i].tree, "entries"))
        {
            struct call c;
            if (skipped-- > 0 || !read_call(entry, &c))
                continue;
            const bool found = compare(v, n, &c, out, cap);
            free_call(&c);
            if (found)
                return true;
        }
        return false; /* calls within one rank cannot be compared: those of all ranks must fit together */
    }
    return false;
}
