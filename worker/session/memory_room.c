/* Compares the memory that this host has with what a plan takes. */
#include "worker/session/memory_room.h"

#include <limits.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "common/base/err.h"
#include "common/base/file.h"
#include "common/base/log.h"
#include "common/base/numbers.h"
#include "worker/data/loader/sampler.h"
#include "worker/session/session.h"
#include "worker/session/session_build.h"

#define NEAR 0.9 /* of what there is */

/* --- limits */

/* Bytes that a file of a cgroup holds; INT64_MAX: "max", or there is no such file. */
static int64_t read_bytes(const char *dir, const char *name)
{
    char text[32];
    unsigned long long v;
    if (file_read_line(text, sizeof text, "%s/%s", dir, name) <= 0 || sscanf(text, "%llu", &v) != 1)
        return INT64_MAX;
    return v > INT64_MAX ? INT64_MAX : (int64_t)v;
}

static int64_t add(int64_t a, int64_t b)
{
    return a > INT64_MAX - b ? INT64_MAX : a + b;
}

struct tree {
    bool v2;
    int64_t swap; /* of the machine */
};

/* What a cgroup allows, swap included. */
static int64_t allowed(const char *dir, const struct tree *t)
{
    if (t->v2)
        return add(read_bytes(dir, "memory.max"), min_i64(t->swap, read_bytes(dir, "memory.swap.max")));
    return min_i64(add(read_bytes(dir, "memory.limit_in_bytes"), t->swap),
                   read_bytes(dir, "memory.memsw.limit_in_bytes"));
}

/* From the group of this process up to the root of the tree. In a container the path may be one of the host's: then the
 * root of the tree is the group. */
static void climb(const char *mount, char *path, const struct tree *t, struct memory_limit *ret)
{
    char dir[PATH_MAX];
    for (char *end = path + strlen(path);; *end = '\0') {
        if (snprintf(dir, sizeof dir, "%s%s", mount, path) < (int)sizeof dir) {
            const int64_t bytes = allowed(dir, t);
            if (bytes < ret->bytes) {
                ret->bytes = bytes;
                snprintf(ret->name, sizeof ret->name, "%s of its cgroup %.150s",
                         t->v2 ? "memory.max" : "memory.limit_in_bytes", *path ? path : "/");
            }
        }
        if (!*path)
            return;
        end = strrchr(path, '/');
    }
}

static bool names_memory(const char *controllers, size_t n)
{
    for (const char *at = controllers, *end = controllers + n; at < end;) {
        const size_t length = strcspn(at, ",:");
        if (length == 6 && memcmp(at, "memory", 6) == 0)
            return true;
        at += length + 1;
    }
    return false;
}

/* A line of /proc/self/cgroup: "0::/path" of the v2 tree, "4:memory:/path" of a v1 tree. */
static void take_group(char *line, const char *root, int64_t swap, struct memory_limit *ret)
{
    char mount[PATH_MAX];
    char *controllers = strchr(line, ':'), *path = controllers ? strchr(controllers + 1, ':') : NULL;
    if (!path || path[1] != '/')
        return;
    const struct tree t = {.v2 = path == controllers + 1, .swap = swap};
    if (!t.v2 && !names_memory(controllers + 1, (size_t)(path - controllers - 1)))
        return;
    path++;
    if (path[1] == '\0')
        *path = '\0';
    const char *const mounts[] = {t.v2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory",
                                  t.v2 ? "/sys/fs/cgroup/unified" : NULL};
    for (int i = 0; i < 2 && mounts[i]; i++) {
        char own[PATH_MAX];
        snprintf(mount, sizeof mount, "%s%s", root, mounts[i]);
        snprintf(own, sizeof own, "%s", path);
        climb(mount, own, &t, ret);
    }
}

/* Bytes; INT64_MAX: no such line. */
static int64_t meminfo(const char *text, const char *name)
{
    const char *line = strstr(text, name);
    long long kb;
    return line && sscanf(line + strlen(name), " %lld kB", &kb) == 1 ? (int64_t)kb * 1024 : INT64_MAX;
}

void memory_limit_read(const char *root, struct memory_limit *ret)
{
    char text[8192], *rest = text, *line;
    file_read_text(text, sizeof text, "%s/proc/meminfo", root);
    const int64_t swap = min_i64(meminfo(text, "SwapTotal:"), INT64_MAX / 4);
    *ret = (struct memory_limit){.bytes = add(meminfo(text, "MemTotal:"), swap),
                                 .available = meminfo(text, "MemAvailable:"),
                                 .name = "the memory of this machine"};
    file_read_text(text, sizeof text, "%s/proc/self/cgroup", root);
    while ((line = strsep(&rest, "\n")))
        take_group(line, root, swap, ret);
}

/* --- judgement */

static double gib(int64_t bytes)
{
    return (double)bytes / (1 << 30);
}

/* A power of two times the present parts: the least --accumulate with which a rank fits into `room`; 0: none. */
static int parts_that_fit(const struct memory_need *n, int64_t room)
{
    const double plan = (double)(n->more + n->unused);
    if (n->parts == 0 || room <= 0)
        return 0;
    int k = 2;
    while (k < n->samples && 1.1 * plan / k > (double)room) /* weights do not shrink with the part */
        k *= 2;
    return 1.1 * plan / k <= (double)room ? n->parts * k : 0;
}

static int refuse(const struct memory_need *n, int64_t needed, int64_t limit, const char *name, struct err *e)
{
    char accumulate[32] = "", together[64] = "";
    const int parts = parts_that_fit(n, limit / n->ranks - (needed / n->ranks - n->more - n->unused));
    if (parts > 0)
        snprintf(accumulate, sizeof accumulate, "--accumulate %d, ", parts);
    if (n->ranks > 1)
        snprintf(together, sizeof together, " (%d ranks of %.1f GiB)", n->ranks, gib(needed / n->ranks));
    return err_set(e, ERR_USAGE, "%s needs %.1f GiB%s, %.1f GiB are allowed here (%s): %s%s", n->what, gib(needed),
                   together, gib(limit), name, accumulate,
                   n->remedy ? n->remedy : "a smaller --batch-size or --image-size");
}

int memory_room_judge(const struct memory_need *n, const struct memory_limit *l, int64_t space, bool *ret_near,
                      struct err *e)
{
    const int64_t needed = (n->held + n->unused + n->more) * n->ranks;
    struct memory_need alone = *n;
    alone.ranks = 1;
    if (n->held_space + n->more > space)
        return refuse(&alone, n->held_space + n->more, space, "its address space: ulimit -v", e);
    if (needed > l->bytes)
        return refuse(n, needed, l->bytes, l->name, e);
    *ret_near = (double)needed > NEAR * (double)l->bytes || n->unused + n->more > l->available;
    return 0;
}

static void look_at_self(struct memory_need *n)
{
    long size = 0, resident = 0, files = 0;
    char text[128];
    const long page = sysconf(_SC_PAGESIZE);
    if (file_read_line(text, sizeof text, "/proc/self/statm") > 0 &&
        sscanf(text, "%ld %ld %ld", &size, &resident, &files) == 3) {
        n->held = (int64_t)(resident - files) * page; /* pages of files can be given back */
        n->held_space = (int64_t)size * page;
    }
}

/* Memory of a plan that is open is taken when it is used. */
static void count_what_is_open(const struct session *s, struct memory_need *n)
{
    struct memory_report open;
    memory_report(s, &open);
    const int64_t planned = s->mem.held[MEM_BEGIN] + memory_planned(&open) - open.batches - open.gathered;
    n->held = planned > n->held ? planned : n->held;
}

static int check(const struct session *s, struct memory_need *n, struct err *e)
{
    struct rlimit space = {.rlim_cur = RLIM_INFINITY};
    struct memory_limit limit;
    bool near = false;
    look_at_self(n);
    if (s->train_plan || s->train_stage)
        count_what_is_open(s, n);
    n->ranks = s->layout.stages == 1 ? s->local_world : 1; /* stages differ */
    getrlimit(RLIMIT_AS, &space);
    memory_limit_read("", &limit);
    TRY(memory_room_judge(n, &limit, space.rlim_cur > INT64_MAX ? INT64_MAX : (int64_t)space.rlim_cur, &near, e));
    if (near && s->rank == 0)
        log_warn(
            "memory",
            "%s needs %.1f GiB a rank, and %.1f GiB are free on this machine, %.1f GiB allowed (%s): it may be killed",
            n->what, gib(n->held + n->unused + n->more), gib(limit.available), gib(limit.bytes), limit.name);
    return 0;
}

int memory_room_of_training(const void *ctx, size_t before, size_t bytes, struct err *e)
{
    const struct session *s = ctx;
    const struct sampler order = session_order(s, true);
    struct memory_need n = {.unused = (int64_t)before,
                            .more = (int64_t)bytes,
                            .parts = sampler_parts(&order),
                            .samples = (int)session_part(s, true),
                            .what = "the plan of training"};
    return check(s, &n, e);
}

int memory_room_of_evaluation(const void *ctx, size_t before, size_t bytes, struct err *e)
{
    struct memory_need n = {.unused = (int64_t)before, .more = (int64_t)bytes, .what = "the plan of evaluation"};
    return check(ctx, &n, e);
}

int memory_room_of_state(const struct session *s, int64_t bytes, struct err *e)
{
    struct memory_need n = {.more = bytes,
                            .what = "the state of the model (parameters, gradients, moments)",
                            .remedy = "a smaller --arch, or more ranks with --zero 3"};
    return check(s, &n, e);
}
