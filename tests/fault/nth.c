/* The Nth allocation of one process fails, for LD_PRELOAD.
 *
 *   NTH_PROCESS=NAME  whose: a program's short name ("crun", "rendezvousd"), the same and ".1" for a fork of it that
 *                     took no other name (crun's agent), or the name that a process took by prctl(2) ("job-output")
 *   NTH_AT=N          the Nth allocation since its fork or exec fails;
 *   NTH_AT=SITE:K     the Kth one of this call site fails: where threads run beside each other N means another one each
 *                     time. SITE is MODULE+OFFSET as NTH_LOG shows it
 *   NTH_ON=1          all that follow fail as well
 *   NTH_SHORT=1       write(2) and writev(2) of it to a file write half of what they could, but one byte at least
 *   NTH_WATCH=N       the Nth descriptor that is new to its epoll finds no room there (ENOSPC); each appends "watch" to
 *                     NTH_LOG's file
 *   NTH_HOLD=FILE     it appends its process id to FILE, and goes on once a tracer has it (strace -p)
 *   NTH_LOG=FILE      without NTH_AT each allocation appends "SITE" to FILE, with it the first that fails appends
 *                     "failed SITE"
 *
 * An allocation is malloc, calloc, realloc, reallocarray, posix_memalign, aligned_alloc, memalign, whoever calls it:
 * the program, libuv, cJSON, libc itself (strdup, asprintf, fopen, pthread_create, dlopen). Giving memory back never
 * fails. The allocations of all threads count. What the process did before it took its name is not counted for it. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

extern char *program_invocation_short_name;
void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t each);
void *__libc_realloc(void *p, size_t n);
void *__libc_memalign(size_t to, size_t n);

enum { NAME_MAX_ = 64, SITE_MAX = 128 };

static struct {
    bool is_ready;  /* the constructor has run */
    bool is_chosen; /* this process is the one */
    bool is_traced;
    bool goes_on;
    long at;             /* 0: nothing fails */
    char site[SITE_MAX]; /* "": at counts all call sites */
    int generation;
    atomic_long calls;
    atomic_bool has_failed;
} nth;

/* --- which process */

static void append(const char *path, const char *line, size_t n)
{
    const int to = (int)syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (to < 0)
        return;
    syscall(SYS_write, to, line, n);
    syscall(SYS_close, to);
}

static bool is_traced_by_somebody(void)
{
    char text[4096] = "";
    const int fd = (int)syscall(SYS_openat, AT_FDCWD, "/proc/self/status", O_RDONLY | O_CLOEXEC, 0);
    syscall(SYS_read, fd, text, sizeof text - 1);
    syscall(SYS_close, fd);
    const char *tracer = strstr(text, "TracerPid:\t");
    return tracer && tracer[11] != '0';
}

static void be_held(const char *path)
{
    const struct timespec pause = {.tv_nsec = 1000000};
    char line[32];
    append(path, line, (size_t)snprintf(line, sizeof line, "%d\n", getpid()));
    for (int ms = 0; ms < 20000 && !is_traced_by_somebody(); ms++)
        syscall(SYS_nanosleep, &pause, NULL);
}

static void choose(const char *name)
{
    const char *wanted = getenv("NTH_PROCESS"), *hold = getenv("NTH_HOLD");
    nth.is_chosen = wanted && strcmp(wanted, name) == 0;
    if (nth.is_chosen && hold)
        be_held(hold);
}

static void be_forked(void)
{
    char name[NAME_MAX_];
    atomic_store(&nth.calls, 0);
    atomic_store(&nth.has_failed, false);
    nth.generation++;
    snprintf(name, sizeof name, "%s.%d", program_invocation_short_name, nth.generation);
    choose(name);
}

__attribute__((constructor)) static void be_loaded(void)
{
    const char *at = getenv("NTH_AT"), *colon = at ? strrchr(at, ':') : NULL;
    if (colon)
        snprintf(nth.site, sizeof nth.site, "%.*s", (int)(colon - at), at);
    nth.at = at ? atol(colon ? colon + 1 : at) : 0;
    nth.goes_on = getenv("NTH_ON");
    nth.is_traced = getenv("NTH_LOG") && !getenv("NTH_WATCH");
    pthread_atfork(NULL, NULL, be_forked);
    choose(program_invocation_short_name);
    nth.is_ready = true;
}

int prctl(int option, ...)
{
    va_list a;
    unsigned long v[4];
    va_start(a, option);
    for (int i = 0; i < 4; i++)
        v[i] = va_arg(a, unsigned long);
    va_end(a);
    if (option == PR_SET_NAME && syscall(SYS_gettid) == getpid()) {
        atomic_store(&nth.calls, 0);
        choose((const char *)v[0]); /* NOLINT: as prctl(2) has it */
    }
    return (int)syscall(SYS_prctl, option, v[0], v[1], v[2], v[3]);
}

/* --- which call */

static void name_site(void *caller, char out[SITE_MAX])
{
    Dl_info at;
    if (!dladdr(caller, &at) || !at.dli_fname) {
        snprintf(out, SITE_MAX, "?");
        return;
    }
    const char *slash = strrchr(at.dli_fname, '/');
    snprintf(out, SITE_MAX, "%s+%zx", slash ? slash + 1 : at.dli_fname,
             (size_t)((char *)caller - (char *)at.dli_fbase));
}

static void tell(const char *what, const char *site)
{
    char line[SITE_MAX + 16];
    const char *path = getenv("NTH_LOG");
    if (path)
        append(path, line, (size_t)snprintf(line, sizeof line, "%s%s\n", what, site));
}

static bool fails(void *caller)
{
    static _Thread_local bool inside __attribute__((tls_model("initial-exec")));
    if (!nth.is_ready || !nth.is_chosen || inside || (nth.at == 0 && !nth.is_traced))
        return false;
    const int was = errno;
    char site[SITE_MAX];
    inside = true;
    name_site(caller, site);
    if (nth.at == 0)
        tell("", site);
    bool is_it =
        nth.at > 0 && (!nth.site[0] || strcmp(site, nth.site) == 0) && atomic_fetch_add(&nth.calls, 1) + 1 == nth.at;
    if (is_it && !atomic_exchange(&nth.has_failed, true))
        tell("failed ", site);
    is_it |= nth.goes_on && atomic_load(&nth.has_failed);
    inside = false;
    errno = is_it ? ENOMEM : was;
    return is_it;
}

/* --- the calls */

void *malloc(size_t n)
{
    return fails(__builtin_return_address(0)) ? NULL : __libc_malloc(n);
}

void *calloc(size_t n, size_t each)
{
    return fails(__builtin_return_address(0)) ? NULL : __libc_calloc(n, each);
}

void *realloc(void *p, size_t n)
{
    return (n > 0 || !p) && fails(__builtin_return_address(0)) ? NULL : __libc_realloc(p, n);
}

void *reallocarray(void *p, size_t n, size_t each)
{
    size_t bytes;
    if (__builtin_mul_overflow(n, each, &bytes) || (bytes > 0 && fails(__builtin_return_address(0)))) {
        errno = ENOMEM;
        return NULL;
    }
    return __libc_realloc(p, bytes);
}

int posix_memalign(void **ret, size_t to, size_t n)
{
    void *p = fails(__builtin_return_address(0)) ? NULL : __libc_memalign(to, n);
    if (!p)
        return ENOMEM;
    *ret = p;
    return 0;
}

void *aligned_alloc(size_t to, size_t n)
{
    return fails(__builtin_return_address(0)) ? NULL : __libc_memalign(to, n);
}

void *memalign(size_t to, size_t n);
void *memalign(size_t to, size_t n)
{
    return fails(__builtin_return_address(0)) ? NULL : __libc_memalign(to, n);
}

int epoll_ctl(int epoll, int op, int fd, struct epoll_event *e)
{
    static atomic_long watched;
    const char *n = getenv("NTH_WATCH");
    const int rc = (int)syscall(SYS_epoll_ctl, epoll, op, fd, e);
    if (rc < 0 || op != EPOLL_CTL_ADD || !nth.is_chosen || !n)
        return rc;
    tell("watch", "");
    if (atomic_fetch_add(&watched, 1) + 1 != atol(n))
        return rc;
    syscall(SYS_epoll_ctl, epoll, EPOLL_CTL_DEL, fd, NULL);
    errno = ENOSPC;
    return -1;
}

static bool is_short(int fd)
{
    struct stat s;
    return nth.is_chosen && getenv("NTH_SHORT") && fstat(fd, &s) == 0 && S_ISREG(s.st_mode);
}

ssize_t write(int fd, const void *data, size_t n)
{
    return syscall(SYS_write, fd, data, is_short(fd) && n > 1 ? n / 2 : n);
}

ssize_t writev(int fd, const struct iovec *v, int n)
{
    for (int i = 0; i < n && is_short(fd); i++)
        if (v[i].iov_len > 0)
            return write(fd, v[i].iov_base, v[i].iov_len);
    return syscall(SYS_writev, fd, v, n);
}
