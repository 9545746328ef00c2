#include "launcher/hang/stacks_dw.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "common/base/err.h"

#define LIBDW "libdw.so.1"
#define FRAMES_MAX 64

/* As in elfutils/libdwfl.h. */
typedef struct Dwfl Dwfl;
typedef struct Dwfl_Module Dwfl_Module;
typedef struct Dwfl_Frame Dwfl_Frame;
typedef struct {
    int (*find_elf)(void);
    int (*find_debuginfo)(void);
    int (*section_address)(void);
    char **debuginfo_path;
} Dwfl_Callbacks;

#define DW_FUNCTIONS(X)                                                                                                \
    X(Dwfl *, dwfl_begin, const Dwfl_Callbacks *callbacks)                                                             \
    X(void, dwfl_end, Dwfl *dwfl)                                                                                      \
    X(int, dwfl_linux_proc_report, Dwfl *dwfl, pid_t pid)                                                              \
    X(int, dwfl_report_end, Dwfl *dwfl, int (*removed)(void), void *arg)                                               \
    X(int, dwfl_linux_proc_attach, Dwfl *dwfl, pid_t pid, bool stopped)                                                \
    X(int, dwfl_getthread_frames, Dwfl *dwfl, pid_t tid, int (*frame)(Dwfl_Frame * f, void *arg), void *arg)           \
    X(bool, dwfl_frame_pc, Dwfl_Frame *f, uint64_t *pc, bool *activation)                                              \
    X(Dwfl_Module *, dwfl_addrmodule, Dwfl *dwfl, uint64_t pc)                                                         \
    X(const char *, dwfl_module_info, Dwfl_Module *m, void ***, uint64_t *from, uint64_t *to, uint64_t *, uint64_t *,  \
      const char **file, const char **)                                                                                \
    X(const char *, dwfl_module_addrinfo, Dwfl_Module *m, uint64_t pc, uint64_t *offset, void *sym, uint32_t *shndxp,  \
      void **elf, uint64_t *bias)                                                                                      \
    X(int, dwfl_linux_proc_find_elf, void)                                                                             \
    X(int, dwfl_errno, void)                                                                                           \
    X(const char *, dwfl_errmsg, int error)

static struct {
#define X(type, name, ...) type (*name)(__VA_ARGS__);
    DW_FUNCTIONS(X)
#undef X
    char why[256]; /* not "": cannot be used */
} dw;

struct stacks_dw {
    Dwfl *dwfl;
    Dwfl_Callbacks callbacks;
};

static const struct {
    const char *name;
    size_t at;
} functions[] = {
#define X(type, name, ...) {#name, offsetof(__typeof__(dw), name)},
    DW_FUNCTIONS(X)
#undef X
};

static void open_library(void)
{
    struct err e = {0};
    void *lib = dlopen(LIBDW, RTLD_NOW | RTLD_LOCAL);
    if (!lib)
        err_set(&e, -ENOENT, "%s (Debian 12: libdw1; Debian 13, Ubuntu 24.04: libdw1t64) is not installed", LIBDW);
    for (size_t i = 0; lib && i < sizeof functions / sizeof *functions; i++) {
        void *f = dlsym(lib, functions[i].name);
        if (!f)
            err_set(&e, -ENOENT, "%s has no %s", LIBDW, functions[i].name);
        *(void **)((char *)&dw + functions[i].at) = f;
    }
    for (size_t i = 0; i + 1 < sizeof dw.why && e.text[i]; i++)
        dw.why[i] = e.text[i];
}

/* Separate debug information would be looked for in far places (debuginfod). */
static int no_debuginfo(void)
{
    return -1;
}

static int dw_error(const char *what, struct err *e)
{
    const char *text = dw.dwfl_errmsg(dw.dwfl_errno());
    return err_set(e, -EIO, "%s: %s", what, text ? text : "unknown error of libdw");
}

int stacks_dw_open(struct stacks_dw **ret, pid_t pid, struct err *e)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, open_library);
    if (dw.why[0])
        return err_set(e, -ENOENT, "%s", dw.why);
    struct stacks_dw *s = calloc(1, sizeof *s);
    if (!s)
        return err_errno(e, ENOMEM, "call stacks");
    s->callbacks = (Dwfl_Callbacks){.find_elf = dw.dwfl_linux_proc_find_elf, .find_debuginfo = no_debuginfo};
    s->dwfl = dw.dwfl_begin(&s->callbacks);
    int rc = 0;
    if (!s->dwfl || dw.dwfl_linux_proc_report(s->dwfl, pid) != 0 || dw.dwfl_report_end(s->dwfl, NULL, NULL) != 0)
        rc = dw_error("libraries of the process", e);
    else if (dw.dwfl_linux_proc_attach(s->dwfl, pid, true) != 0)
        rc = dw_error("threads of the process", e);
    if (rc < 0)
        stacks_dw_close(s);
    else
        *ret = s;
    return rc;
}

struct walk {
    struct stacks_dw *s;
    struct buf *out;
    const atomic_bool *cancel;
    int n;
};

static int on_frame(Dwfl_Frame *f, void *arg)
{
    enum { GO_ON = 0, STOP = 1 };
    struct walk *w = arg;
    uint64_t pc, from, to, offset = 0;
    uint64_t symbol[3]; /* GElf_Sym, not used */
    const char *name = NULL, *file = NULL;
    bool activation;
    if (w->n >= FRAMES_MAX || atomic_load(w->cancel) || !dw.dwfl_frame_pc(f, &pc, &activation))
        return STOP;
    const uint64_t in = activation ? pc : pc - 1; /* a return address may belong to the next function */
    Dwfl_Module *m = dw.dwfl_addrmodule(w->s->dwfl, in);
    if (m) {
        name = dw.dwfl_module_addrinfo(m, in, &offset, symbol, NULL, NULL, NULL);
        dw.dwfl_module_info(m, NULL, &from, &to, NULL, NULL, &file, NULL);
    }
    int rc = buf_printf(w->out, "  #%-2d 0x%012llx ", w->n++, (unsigned long long)pc);
    if (rc == 0 && name)
        rc = buf_printf(w->out, "%s+0x%llx", name, (unsigned long long)(offset + (pc - in)));
    else if (rc == 0 && m)
        rc = buf_printf(w->out, "+0x%llx", (unsigned long long)(pc - from));
    if (rc == 0)
        rc = buf_printf(w->out, "%s%s%s\n", m ? " (" : "?", m && file ? file : "", m ? ")" : "");
    return rc == 0 ? GO_ON : STOP;
}

int stacks_dw_thread(struct stacks_dw *s, pid_t tid, const atomic_bool *cancel, struct buf *out, struct err *e)
{
    struct walk w = {s, out, cancel, 0};
    if (dw.dwfl_getthread_frames(s->dwfl, tid, on_frame, &w) < 0 && w.n == 0)
        return dw_error("call stack", e);
    return 0;
}

void stacks_dw_close(struct stacks_dw *s)
{
    if (!s)
        return;
    if (s->dwfl)
        dw.dwfl_end(s->dwfl);
    free(s);
}
