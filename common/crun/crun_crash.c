/* libcrun: the last words of a worker that crashes.
 *
 * - Everything a handler needs is made while the process is well: the names of files, a signal stack, the unwinder
 *   (loaded by the first backtrace(3)), a file without a name. The handler calls only what signal-safety(7) allows,
 *   backtrace(3) and backtrace_symbols_fd(3).
 * - First the message is printed and recorded, then the call stack is unwound. If a memory fault has damaged the stack,
 *   the unwinder itself crashes: the handler is entered again, and leaves the unwinder by siglongjmp(3). What was
 *   written stays.
 * - The record is written to the file without a name, which then gets its name: never half a record, nothing left by a
 *   process that ends well. If the file system has no unnamed files, it is opened when needed. The record with the
 *   stack is written to a second file, which is renamed over the first.
 * - A process that the worker forked only prints: record and page belong to the worker.
 * - Then the signal does what it would have done: its former action is put back, and the instruction is tried again,
 *   or, for a signal that somebody sent (abort(), kill), the signal is sent again. So debuggers, core dumps and other
 *   handlers see what they always saw.
 * - A second thread that crashes meanwhile waits up to a second for the first one's record. */
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "common/crun/crun_page.h"
#include "common/crun/crun_self.h"
#include "common/include/crun.h"

#define STACK_BYTES (64 << 10)
#define FRAMES_MAX 48
#define OTHERS_WAIT_MS 1000

static const struct crash {
    int signo;
    const char *name;
} crashes[] = {{SIGSEGV, "SIGSEGV"}, {SIGBUS, "SIGBUS"}, {SIGFPE, "SIGFPE"}, {SIGILL, "SIGILL"}, {SIGABRT, "SIGABRT"}};

#define CRASHES (sizeof crashes / sizeof *crashes)

static struct {
    bool installed;
    pid_t pid; /* process id of the worker; a process that it forked has another one */
    struct sigaction before[CRASHES];
    int unnamed; /* file that becomes the record; -1: none */
    /* paths of the record, of its temporary name, and of the unnamed file in /proc */
    char path[4096], tmp[4100], link[40];
    char record[8192];
} crash;

/* --- text without stdio */

struct out {
    char *at;
    size_t n, cap;
};

static void put_text(struct out *o, const char *text)
{
    while (*text && o->n < o->cap)
        o->at[o->n++] = *text++;
}

/* As the inside of a JSON string. */
static void put_escaped(struct out *o, const char *text, size_t n)
{
    for (size_t i = 0; i < n && o->n + 2 < o->cap; i++) {
        if (text[i] == '"' || text[i] == '\\')
            o->at[o->n++] = '\\';
        o->at[o->n++] = (unsigned char)text[i] < 0x20 || (unsigned char)text[i] >= 0x7f ? '?' : text[i];
    }
}

static void put_number(struct out *o, uint64_t v, unsigned base)
{
    char digits[24];
    size_t n = 0;
    do
        digits[n++] = "0123456789abcdef"[v % base];
    while ((v /= base) > 0);
    while (n > 0 && o->n < o->cap)
        o->at[o->n++] = digits[--n];
}

static void put_hex(struct out *o, uint64_t v)
{
    put_text(o, "0x");
    put_number(o, v, 16);
}

/* --- the call stack */

/* One line of /proc/self/maps: "7f12-7f34 r-xp 00001000 08:01 123   /lib/libc.so.6". */
struct mapping {
    uint64_t from, to, offset;
    const char *path;
    size_t path_len;
};

static uint64_t take_hex(const char **p)
{
    uint64_t v = 0;
    for (;; (*p)++) {
        const char c = **p;
        if (c >= '0' && c <= '9')
            v = v << 4 | (uint64_t)(c - '0');
        else if (c >= 'a' && c <= 'f')
            v = v << 4 | (uint64_t)(c - 'a' + 10);
        else
            return v;
    }
}

static void parse_mapping(const char *line, struct mapping *m)
{
    m->from = take_hex(&line);
    line += *line == '-';
    m->to = take_hex(&line);
    for (int fields = 0; fields < 4 && *line; fields++) { /* permissions, offset, device, inode */
        line += strspn(line, " ");
        if (fields == 1)
            m->offset = take_hex(&line);
        line += strcspn(line, " ");
    }
    line += strspn(line, " ");
    m->path = line;
    m->path_len = strlen(line);
}

/* Calls fn for each mapping of this process until it returns true. */
static void each_mapping(bool (*fn)(void *arg, const struct mapping *m), void *arg)
{
    static char buffer[8192]; /* used by one thread at a time */
    size_t n = 0;
    ssize_t got;
    int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    while (fd >= 0 && (got = read(fd, buffer + n, sizeof buffer - 1 - n)) > 0) {
        char *line = buffer, *end;
        n += (size_t)got;
        buffer[n] = '\0';
        for (; (end = memchr(line, '\n', n - (size_t)(line - buffer))); line = end + 1) {
            struct mapping m = {.from = 0};
            *end = '\0';
            parse_mapping(line, &m);
            if (fn(arg, &m)) {
                close(fd);
                return;
            }
        }
        n -= (size_t)(line - buffer);
        memmove(buffer, line, n);
    }
    if (fd >= 0)
        close(fd);
}

struct frame {
    uint64_t pc;
    struct out *out;
};

static bool name_frame(void *arg, const struct mapping *m)
{
    struct frame *f = arg;
    if (f->pc < m->from || f->pc >= m->to)
        return false;
    put_text(f->out, " ");
    put_escaped(f->out, m->path, m->path_len);
    put_text(f->out, "+");
    put_hex(f->out, f->pc - m->from + m->offset); /* in the form for addr2line -e FILE */
    return true;
}

/* Write the stack as "#0 0x55d1 /bin/worker+0x11d1\n#1 ...", with escaped line ends. */
static void put_stack(struct out *o, void *const *frames, int n)
{
    for (int i = 0; i < n; i++) {
        struct frame f = {(uint64_t)(uintptr_t)frames[i], o};
        put_text(o, i ? "\\n#" : "#");
        put_number(o, (uint64_t)i, 10);
        put_text(o, " ");
        put_hex(o, f.pc);
        each_mapping(name_frame, &f);
    }
}

/* --- the record */

static void put_message(struct out *o, const struct crash *c, const siginfo_t *info)
{
    put_text(o, "crashed: ");
    put_text(o, c->name);
    if (info->si_code <= 0 && info->si_pid == 0) {
        put_text(o, " sent by a process outside of its container");
    } else if (info->si_code <= 0) {
        if (info->si_pid != getpid()) { /* abort(), or another handler that sends the signal again */
            put_text(o, " sent by process ");
            put_number(o, (uint64_t)info->si_pid, 10);
        }
    } else {
        put_text(o, c->signo == SIGSEGV || c->signo == SIGBUS ? " at address " : " by the instruction at ");
        put_hex(o, (uint64_t)(uintptr_t)info->si_addr);
    }
}

static void put_record(struct out *o, const struct crash *c, const char *message, void *const *frames, int n)
{
    struct crun_page *p = libcrun_self.page;
    put_text(o, "{\"message\": {\"message\": \"");
    put_text(o, message);
    put_text(o, "\", \"extraInfo\": {\"timestamp\": \"");
    put_number(o, (uint64_t)time(NULL), 10);
    /* leave the field out if there is no stack: torchrun shows even an empty one in place of the message */
    if (n > 0) {
        put_text(o, "\", \"py_callstack\": \"");
        o->cap -= 128; /* reserve room for the end of the record, however long the stack is */
        put_stack(o, frames, n);
        o->cap += 128;
    }
    put_text(o, "\"}}, \"exitcode\": ");
    put_number(o, (uint64_t)(128 + c->signo), 10);
    put_text(o, ", \"rank\": ");
    put_number(o, (uint64_t)libcrun_self.rank, 10);
    if (p && atomic_load(&p->first_step_ns) != 0) {
        put_text(o, ", \"step\": ");
        put_number(o, atomic_load(&p->step), 10);
    }
    put_text(o, "}\n");
}

static void write_all(int fd, const char *data, size_t n)
{
    while (n > 0) {
        ssize_t w = write(fd, data, n);
        if (w <= 0)
            return;
        data += w;
        n -= (size_t)w;
    }
}

/* Write to a file beside the record's. */
static bool write_beside(const struct out *o)
{
    unlink(crash.tmp);
    int fd = open(crash.tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0)
        return false;
    write_all(fd, o->at, o->n);
    close(fd);
    return true;
}

/* Give the record its name. If a record is there already, it tells an earlier error and stays. True: the file now
 * holds our record. */
static bool leave_record(const struct out *o)
{
    if (!crash.path[0])
        return false;
    if (crash.unnamed >= 0) {
        write_all(crash.unnamed, o->at, o->n);
        if (linkat(AT_FDCWD, crash.link, AT_FDCWD, crash.path, AT_SYMLINK_FOLLOW) == 0)
            return true;
        if (errno == EEXIST)
            return false;
    }
    if (!write_beside(o))
        return false;
    const bool linked = link(crash.tmp, crash.path) == 0, exists = !linked && errno == EEXIST;
    if (linked || exists)
        unlink(crash.tmp);
    return linked || (!exists && rename(crash.tmp, crash.path) == 0);
}

static void replace_record(const struct out *o)
{
    if (write_beside(o) && rename(crash.tmp, crash.path) < 0)
        unlink(crash.tmp);
}

static void leave_in_page(const struct crash *c, const char *message)
{
    struct crun_page *p = libcrun_self.page;
    if (!p)
        return;
    struct out text = {p->error_text, 0, sizeof p->error_text - 1};
    put_text(&text, message);
    p->error_text[text.n] = '\0';
    atomic_store(&p->error_code, 128 + c->signo);
}

/* Record the message, without a stack. True: the file now holds our record. */
static bool record_message(const struct crash *c, const char *message)
{
    struct out record = {crash.record, 0, sizeof crash.record};
    if (getpid() != crash.pid || atomic_flag_test_and_set(&libcrun_self.recorded))
        return false;
    put_record(&record, c, message, NULL, 0);
    leave_in_page(c, message);
    return leave_record(&record);
}

/* Leaves by siglongjmp() if the unwinder crashes. */
static void add_stack(const struct crash *c, const char *message, bool is_recorded)
{
    static void *frames[FRAMES_MAX];
    struct out record = {crash.record, 0, sizeof crash.record};
    const int n = backtrace(frames, FRAMES_MAX);
    if (is_recorded) {
        put_record(&record, c, message, frames, n);
        replace_record(&record);
    }
    backtrace_symbols_fd(frames, n, STDERR_FILENO);
}

/* Thread that is unwinding its stack now; 0: none. */
static _Atomic pid_t unwinds;
static sigjmp_buf out_of_unwinder;

static void try_stack(const struct crash *c, const char *message, bool is_recorded)
{
    sigset_t faults, before;
    sigemptyset(&faults);
    for (unsigned i = 0; i < CRASHES; i++)
        sigaddset(&faults, crashes[i].signo);
    pthread_sigmask(SIG_UNBLOCK, &faults, &before);
    if (sigsetjmp(out_of_unwinder, 0) == 0) {
        atomic_store(&unwinds, (pid_t)syscall(SYS_gettid));
        add_stack(c, message, is_recorded);
    } else {
        static const char damaged[] = "(its call stack is damaged)\n";
        write_all(STDERR_FILENO, damaged, sizeof damaged - 1);
    }
    atomic_store(&unwinds, 0);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static void last_words(const struct crash *c, const siginfo_t *info)
{
    char message[256];
    struct out text = {message, 0, sizeof message - 2};
    put_message(&text, c, info);
    message[text.n] = '\n';
    write_all(STDERR_FILENO, message, text.n + 1);
    message[text.n] = '\0';
    try_stack(c, message, record_message(c, message));
}

/* --- the handler */

static void on_crash(int signo, siginfo_t *info, void *context)
{
    static atomic_flag entered = ATOMIC_FLAG_INIT;
    static atomic_bool reported;
    const int saved = errno;
    unsigned i = 0;
    while (i < CRASHES && crashes[i].signo != signo)
        i++;
    if (i == CRASHES)
        return;
    if (atomic_load(&unwinds) == (pid_t)syscall(SYS_gettid))
        siglongjmp(out_of_unwinder, 1);
    if (!atomic_flag_test_and_set(&entered)) {
        last_words(&crashes[i], info);
        atomic_store(&reported, true);
    } else {
        const struct timespec ms = {.tv_nsec = 1000000};
        for (int k = 0; k < OTHERS_WAIT_MS && !atomic_load(&reported); k++)
            nanosleep(&ms, NULL);
    }
    sigaction(signo, &crash.before[i], NULL);
    if (info->si_code <= 0)
        syscall(SYS_tgkill, getpid(), syscall(SYS_gettid), signo); /* delivered when this handler returns */
    errno = saved;
}

static void prepare_record(void)
{
    const char *path = libcrun_self.error_file;
    crash.unnamed = -1;
    if (!path || !*path || strlen(path) >= sizeof crash.path)
        return;
    strcpy(crash.path, path);
    snprintf(crash.tmp, sizeof crash.tmp, "%s.tmp", path);
    char *folder = strdup(path), *slash = folder ? strrchr(folder, '/') : NULL;
    if (slash) {
        slash[slash == folder] = '\0';
        int fd = open(folder, O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666);
        /* keep 0 to 2 free: a closed stderr must not become this file */
        crash.unnamed = fd >= 0 ? fcntl(fd, F_DUPFD_CLOEXEC, 3) : -1;
        if (fd >= 0)
            close(fd);
    }
    free(folder);
    snprintf(crash.link, sizeof crash.link, "/proc/self/fd/%d", crash.unnamed);
}

/* Give this thread a signal stack, unless it has one. Without it, a stack overflow leaves the handler no room to
 * run. */
static void give_stack(void)
{
    stack_t now;
    if (sigaltstack(NULL, &now) < 0 || !(now.ss_flags & SS_DISABLE))
        return;
    void *at = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at != MAP_FAILED)
        sigaltstack(&(stack_t){.ss_sp = at, .ss_size = STACK_BYTES}, NULL);
}

int crun_catch_crashes(void)
{
    void *frames[4];
    struct sigaction a = {.sa_sigaction = on_crash, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    if (crash.installed)
        return 0;
    backtrace(frames, 4); /* loads the unwinder now: a signal handler must not load it */
    prepare_record();
    give_stack();
    sigfillset(&a.sa_mask);
    for (unsigned i = 0; i < CRASHES; i++) {
        if (sigaction(crashes[i].signo, NULL, &crash.before[i]) < 0)
            return -errno;
        const bool ignored = !(crash.before[i].sa_flags & SA_SIGINFO) && crash.before[i].sa_handler == SIG_IGN;
        if (!ignored && sigaction(crashes[i].signo, &a, NULL) < 0)
            return -errno;
    }
    crash.pid = getpid();
    crash.installed = true;
    return 0;
}
