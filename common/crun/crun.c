/* libcrun: the worker's end of the shared page, plus the environment.
 *
 * - crun_init() maps the page behind CRUN_PAGE_FD if there really is one: descriptor, size, magic and version are
 *   looked at first, so that a stale variable (a grandchild that inherited the environment but not the descriptor) only
 *   means "without crun".
 * - The descriptors become close-on-exec here: a worker's children must not keep the page alive, nor announce progress.
 * - Everything after that is loads and stores; the page is the launcher's to free.
 */
#include "common/include/crun.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/args/args.h"
#include "common/base/clock.h"
#include "common/crun/crun_page.h"
#include "common/crun/crun_self.h"
#include "common/job/env_contract.h"
#include "common/job/failure_record.h"

struct libcrun libcrun_self = {.recorded = ATOMIC_FLAG_INIT};
#define self libcrun_self

/* The descriptor that the environment names, -1 if none. */
static int page_descriptor(void)
{
    const char *text = getenv(ENV_PAGE_FD);
    int64_t fd;
    return text && parse_i64(text, ENV_PAGE_FD, 0, INT32_MAX, &fd, NULL) == 0 ? (int)fd : -1;
}

static void close_on_exec(int fd)
{
    int flags = fd >= 0 ? fcntl(fd, F_GETFD) : -1;
    if (flags >= 0)
        fcntl(fd, F_SETFD, flags | FD_CLOEXEC);
}

static struct crun_page *map_page(int fd)
{
    struct stat st;
    if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_size < CRUN_PAGE_BYTES)
        return NULL;
    struct crun_page *p = mmap(NULL, CRUN_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED)
        return NULL;
    if (p->magic != CRUN_PAGE_MAGIC || p->version < CRUN_PAGE_OLDEST) { /* later versions only append */
        munmap(p, CRUN_PAGE_BYTES);
        return NULL;
    }
    close_on_exec(fd);
    close_on_exec(p->notify_fd);
    if (p->version >= 2)
        close_on_exec(p->wake_fd);
    if (p->version >= 2)
        close_on_exec(p->stdio_fd);
    close_on_exec(p->memory_fd - 1);
    return p;
}

/* Copy the strings of the environment, which the program may change later. */
static int copy_strings(const struct env_contract *c)
{
    self.run_id = strdup(c->run_id ? c->run_id : "");
    self.store = strdup(c->store_url ? c->store_url : "");
    self.error_file = strdup(c->error_file ? c->error_file : "");
    return self.run_id && self.store && self.error_file ? 0 : -ENOMEM;
}

int crun_init(struct crun_info *ret)
{
    struct env_contract c;
    int rc = env_contract_read(&c, NULL);
    if (rc < 0)
        return rc;
    crun_finish();
    if ((rc = copy_strings(&c)) < 0) {
        crun_finish();
        return rc;
    }
    self.rank = (int)c.rank;
    self.world = (int)c.world_size;
    self.seq = 0;
    memset(self.spent_us, 0, sizeof self.spent_us);
    self.page = map_page(page_descriptor());
    if (self.page)
        atomic_store(&self.page->attached, 1);
    *ret = (struct crun_info){
        .rank = (int)c.rank,
        .world_size = (int)c.world_size,
        .local_rank = (int)c.local_rank,
        .local_world_size = (int)c.local_world_size,
        .group_rank = (int)c.group_rank,
        .group_world_size = (int)c.group_world_size,
        .round = (int)c.round,
        .restart_count = (int)c.restart_count,
        .run_id = self.run_id,
        .store = self.store,
    };
    return 0;
}

void crun_finish(void)
{
    libcrun_store_close();
    if (self.page) {
        atomic_store(&self.page->attached, 0);
        munmap(self.page, CRUN_PAGE_BYTES);
    }
    free(self.run_id);
    free(self.store);
    free(self.error_file);
    self.page = NULL;
    self.run_id = self.store = self.error_file = NULL;
    atomic_flag_clear(&self.recorded);
}

static void announce_first_progress(struct crun_page *p, int64_t now)
{
    int64_t never = 0;
    uint64_t one = 1;
    if (atomic_load(&p->phase) == CRUN_PHASE_STARTING)
        crun_phase(CRUN_PHASE_STEP);
    if (!atomic_compare_exchange_strong(&p->first_step_ns, &never, now) || p->notify_fd < 0)
        return;
    /* may fail: the launcher looks at the page from time to time anyway */
    ssize_t ignored = write(p->notify_fd, &one, sizeof one);
    (void)ignored;
}

static int64_t relaxed(_Atomic int64_t *at)
{
    return atomic_load_explicit(at, memory_order_relaxed);
}

static void raise_to(_Atomic int64_t *longest, int64_t ns)
{
    if (ns > relaxed(longest))
        atomic_store_explicit(longest, ns, memory_order_relaxed);
}

/* Count the step that has ended in the page's histogram. Only this thread writes there: plain loads and stores. The
 * first step is not counted, because its beginning is not known. */
static void count_step(struct crun_page *p, int64_t now)
{
    int64_t from = relaxed(&p->last_step_ns), phase = relaxed(&p->phase_ns);
    if (from == 0 || atomic_load_explicit(&p->phase, memory_order_relaxed) != CRUN_PHASE_STEP)
        return;
    const int64_t took = now - (phase > from ? phase : from);
    _Atomic uint32_t *n = &p->steps[crun_page_bucket(took)];
    atomic_store_explicit(n, atomic_load_explicit(n, memory_order_relaxed) + 1, memory_order_relaxed);
    raise_to(&p->longest_ns[CRUN_PHASE_STEP], took);
}

void crun_phase(enum crun_phase phase)
{
    struct crun_page *p = self.page;
    if (!p || (unsigned)phase >= CRUN_PAGE_PHASES)
        return;
    const int64_t now = clock_ns();
    const uint32_t before = atomic_load_explicit(&p->phase, memory_order_relaxed);
    if (before == (uint32_t)phase)
        return;
    if (before != CRUN_PHASE_STEP)
        raise_to(&p->longest_ns[before], now - relaxed(&p->phase_ns));
    atomic_store_explicit(&p->phase_ns, now, memory_order_relaxed);
    atomic_store_explicit(&p->phase, (uint32_t)phase, memory_order_release);
}

const char *crun_phase_name(enum crun_phase phase)
{
    switch (phase) {
#define X(name, value, text)                                                                                           \
    case name:                                                                                                         \
        return text;
        CRUN_PHASES(X)
#undef X
    }
    return "unknown";
}

/* --- what a step is made of */

const char *crun_part_name(enum crun_part part)
{
    switch (part) {
#define X(name, value, text)                                                                                           \
    case name:                                                                                                         \
        return text;
        CRUN_PARTS(X)
#undef X
    }
    return "unknown";
}

static void add_part(struct crun_page *p, enum crun_part part, double seconds)
{
    const uint32_t reported = atomic_load_explicit(&p->parts, memory_order_relaxed);
    self.spent_us[part] += seconds * 1e6;
    if (!(reported >> part & 1))
        atomic_store_explicit(&p->parts, reported | 1u << part, memory_order_relaxed);
}

static uint32_t micros(double us)
{
    return us < UINT32_MAX ? (uint32_t)us : UINT32_MAX;
}

static void tell_parts(struct crun_page *p, uint64_t step)
{
    uint32_t us[CRUN_PAGE_PARTS];
    if (atomic_load_explicit(&p->parts, memory_order_relaxed) == 0)
        return;
    for (int i = 0; i < CRUN_PAGE_PARTS; i++) {
        us[i] = micros(self.spent_us[i]);
        self.spent_us[i] = 0;
    }
    crun_page_write_row(p, step, us);
}

void crun_spent(enum crun_part part, double seconds)
{
    struct crun_page *p = self.page;
    if (!p || (unsigned)part >= CRUN_PAGE_PARTS || !isfinite(seconds) || seconds < 0)
        return;
    if (part == CRUN_PART_WAIT)
        crun_figure(CRUN_FIGURE_WAIT_S, seconds);
    else
        add_part(p, part, seconds);
}

void crun_links(double best_s, double worst_s)
{
    struct crun_page *p = self.page;
    if (!p || !isfinite(best_s) || !isfinite(worst_s) || best_s < 0 || worst_s < 0)
        return;
    atomic_store_explicit(&p->link_us[0], micros(best_s * 1e6 + 1), memory_order_relaxed);
    atomic_store_explicit(&p->link_us[1], micros(worst_s * 1e6 + 1), memory_order_relaxed);
}

void crun_progress(uint64_t step)
{
    struct crun_page *p = self.page;
    if (!p)
        return;
    int64_t now = clock_ns();
    count_step(p, now);
    tell_parts(p, step);
    atomic_store_explicit(&p->step, step, memory_order_relaxed);
    atomic_store_explicit(&p->last_step_ns, now, memory_order_release);
    if (atomic_load_explicit(&p->first_step_ns, memory_order_relaxed) == 0)
        announce_first_progress(p, now);
}

void crun_metrics(double images_per_s, double loss)
{
    struct crun_page *p = self.page;
    if (!p)
        return;
    crun_page_set_real(&p->images_per_s, images_per_s);
    crun_page_set_real(&p->loss, loss);
    atomic_store_explicit(&p->has_metrics, 1, memory_order_release);
}

void crun_figure(enum crun_figure which, double value)
{
    struct crun_page *p = self.page;
    if (!p || (unsigned)which >= CRUN_PAGE_FIGURES || !isfinite(value))
        return;
    if (which == CRUN_FIGURE_WAIT_S && !libcrun_is_time(value))
        return;
    if (which == CRUN_FIGURE_WAIT_S)
        atomic_store_explicit(&p->wait_ns, relaxed(&p->wait_ns) + (int64_t)(value * 1e9), memory_order_relaxed);
    if (which == CRUN_FIGURE_WAIT_S && value >= 0)
        add_part(p, CRUN_PART_WAIT, value);
    crun_page_set_real(&p->figure[which], value);
    const uint32_t set = atomic_load_explicit(&p->figures_set, memory_order_relaxed);
    atomic_store_explicit(&p->figures_set, set | 1u << which, memory_order_release);
}

int crun_metric(const char *name, const char *unit, double value)
{
    struct crun_page *p = self.page;
    if (!crun_page_is_metric(name, unit))
        return -EINVAL;
    if (!p || !isfinite(value))
        return 0;
    const uint32_t n = atomic_load_explicit(&p->metrics, memory_order_relaxed);
    uint32_t i = 0;
    while (i < n && strcmp(p->metric[i].name, name) != 0)
        i++;
    if (i == CRUN_PAGE_METRICS)
        return -ENOSPC;
    crun_page_set_real(&p->metric[i].value, value);
    if (i == n) {
        snprintf(p->metric[i].name, sizeof p->metric[i].name, "%s", name);
        snprintf(p->metric[i].unit, sizeof p->metric[i].unit, "%s", unit);
        atomic_store_explicit(&p->metrics, n + 1, memory_order_release);
    }
    return 0;
}

enum crun_stop_reason crun_stop_reason(void)
{
    struct crun_page *p = self.page;
    uint32_t r = p ? atomic_load_explicit(&p->stop_reason, memory_order_acquire) : CRUN_STOP_NONE;
    return r <= CRUN_STOP_HOLD ? (enum crun_stop_reason)r : CRUN_STOP_ABORT; /* a reason of a later version: exit */
}

const char *crun_stop_reason_name(enum crun_stop_reason r)
{
    switch (r) {
#define X(name, value, text)                                                                                           \
    case name:                                                                                                         \
        return text;
        CRUN_STOP_REASONS(X)
#undef X
    }
    return "unknown";
}

static void copy_text(char *out, size_t cap, const char *text)
{
    size_t n = strnlen(text, cap - 1);
    memcpy(out, text, n);
    out[n] = 0;
}

void crun_record_error(int code, const char *message)
{
    struct crun_page *p = self.page;
    if (atomic_flag_test_and_set(&self.recorded))
        return;
    struct failure_record r = {
        .timestamp = time(NULL), .exitcode = code >= 0 && code < 256 ? code : -1, .rank = self.rank, .step = -1};
    copy_text(r.message, sizeof r.message, message);
    if (p) {
        copy_text(p->error_text, sizeof p->error_text, message);
        atomic_store(&p->error_code, code ? code : -1); /* last of all, because 0 says that there is no error */
        if (atomic_load(&p->first_step_ns) != 0)
            r.step = (int64_t)atomic_load(&p->step);
    }
    /* errors, such as a full disk, are ignored: the page has the record, too */
    failure_record_write(self.error_file, &r, NULL);
}
