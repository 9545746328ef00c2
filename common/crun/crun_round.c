/* libcrun: a process that outlives its round (common/include/crun.h).
 *
 * The launcher wakes a worker in two ways. The eventfd is readable from the moment the page shows a reason until the
 * worker takes the next round: for loops that poll, and for any number of threads. A thread that waits for the next
 * round waits on the futex word, which needs no descriptor. No wake-up is lost: the thread reads the word before the
 * conditions, and the launcher changes it after them. */
#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/crun/crun_page.h"
#include "common/crun/crun_self.h"
#include "common/include/crun.h"
#include "common/net/dial.h"
#include "common/net/fds.h"

#define self libcrun_self

/* The page, if its launcher can hold workers; else NULL. */
static struct crun_page *holding_page(void)
{
    struct crun_page *p = self.page;
    return p && p->version >= 2 && p->wake_fd >= 0 ? p : NULL;
}

static int stay(uint32_t how)
{
    struct crun_page *p = holding_page();
    if (!p)
        return -ENOTSUP;
    libcrun_share_memory();
    atomic_store(&p->stays, how);
    return 0;
}

int crun_stay(void)
{
    return stay(1);
}

int crun_stay_growing(void)
{
    return stay(2);
}

int crun_wake_fd(void)
{
    struct crun_page *p = holding_page();
    return p && atomic_load_explicit(&p->stays, memory_order_relaxed) ? p->wake_fd : -1;
}

int crun_node_memory(void)
{
    return self.page ? self.page->memory_fd - 1 : -1;
}

void crun_keeps(int64_t step)
{
    if (self.page)
        atomic_store(&self.page->keeps, step < 0 ? 0 : (uint64_t)step + 1);
}

void crun_done(void)
{
    if (self.page)
        atomic_store(&self.page->done, 1);
}

static int64_t deadline_of(double timeout_s)
{
    return clock_deadline((int64_t)(timeout_s * 1000));
}

int crun_wait_hold(double timeout_s)
{
    struct crun_page *p = holding_page();
    if (!libcrun_is_time(timeout_s))
        return -EINVAL;
    if (!p)
        return -ENOTSUP;
    const int64_t deadline = deadline_of(timeout_s);
    for (;;) {
        const uint32_t seen = atomic_load(&p->wake);
        const enum crun_stop_reason why = crun_stop_reason();
        if (why != CRUN_STOP_NONE)
            return why == CRUN_STOP_HOLD ? 0 : -ECANCELED;
        const int left = clock_left(deadline);
        if (left == 0)
            return -ETIMEDOUT;
        const struct timespec ts = {.tv_sec = left / 1000, .tv_nsec = left % 1000 * 1000000L};
        syscall(SYS_futex, &p->wake, FUTEX_WAIT, seen, &ts, NULL, 0);
    }
}

/* --- the next round */

static void acknowledge(struct crun_page *p)
{
    const uint32_t holds = atomic_load(&p->holds);
    const uint64_t one = 1;
    if (atomic_exchange(&p->held, holds) == holds)
        return;
    ssize_t ignored = write(p->notify_fd, &one, sizeof one); /* may fail: an agent that is gone needs no notice */
    (void)ignored;
}

/* Drain the eventfd after a hold, so that it is not readable any more. If another hold has come meanwhile, make it
 * readable again. */
static void quieten(struct crun_page *p)
{
    uint64_t n = 1;
    struct pollfd readable = {.fd = p->wake_fd, .events = POLLIN};
    ssize_t ignored = poll(&readable, 1, 0) == 1 ? read(p->wake_fd, &n, sizeof n) : 0;
    n = 1;
    if (crun_stop_reason() != CRUN_STOP_NONE)
        ignored = write(p->wake_fd, &n, sizeof n);
    (void)ignored;
}

/* Reset what the page says of steps: the first step of the new round wakes the launcher again. */
static void restart_page(struct crun_page *p)
{
    for (int i = 0; i < CRUN_PAGE_PHASES; i++)
        atomic_store_explicit(&p->longest_ns[i], 0, memory_order_relaxed);
    for (int i = 0; i < CRUN_PAGE_BUCKETS; i++)
        atomic_store_explicit(&p->steps[i], 0, memory_order_relaxed);
    for (int i = 0; i < CRUN_PAGE_ROWS; i++)
        atomic_store(&p->rows[i].step, 0);
    atomic_store(&p->parts, 0);
    for (int i = 0; i < 2; i++)
        atomic_store(&p->link_us[i], 0);
    for (size_t i = 0; i < sizeof self.spent_us / sizeof *self.spent_us; i++)
        self.spent_us[i] = 0;
    atomic_store(&p->last_step_ns, 0);
    crun_phase(CRUN_PHASE_STARTING);
    atomic_store(&p->first_step_ns, 0);
}

/* Let a warm spare write to the stdout and stderr of its rank, whose descriptors arrive once. */
static void take_stdio(struct crun_page *p)
{
    char byte;
    int fds[2], n;
    const struct iovec part = {&byte, 1};
    if (p->stdio_fd < 0 || fds_receive(p->stdio_fd, &part, 1, 0, fds, 2, &n) != 1)
        return;
    close(p->stdio_fd);
    p->stdio_fd = -1;
    for (int i = 0; i < n; i++) {
        dup2(fds[i], STDOUT_FILENO + i);
        close(fds[i]);
    }
}

/* Remove the error record of the earlier round: this process survived it. */
static void forget_error(struct crun_page *p)
{
    if (self.error_file && *self.error_file)
        unlink(self.error_file);
    atomic_store(&p->error_code, 0);
    atomic_flag_clear(&self.recorded);
}

static int enter(struct crun_page *p, const struct crun_page_round *r, struct crun_info *ret)
{
    char *store = strndup(r->store, sizeof r->store);
    if (!store)
        return -ENOMEM;
    take_stdio(p);
    libcrun_store_close();
    free(self.store);
    self.store = store;
    self.rank = r->rank;
    self.world = r->world_size;
    restart_page(p);
    forget_error(p);
    quieten(p);
    *ret = (struct crun_info){.rank = r->rank,
                              .world_size = r->world_size,
                              .local_rank = r->local_rank,
                              .local_world_size = r->local_world_size,
                              .group_rank = r->group_rank,
                              .group_world_size = r->group_world_size,
                              .round = r->round,
                              .restart_count = r->restart_count,
                              .run_id = self.run_id,
                              .store = self.store};
    return 0;
}

/* Was the published round broken again? Then this process must let go once more. */
static bool is_broken(struct crun_page *p)
{
    return atomic_load(&p->holds) != atomic_load(&p->held);
}

/* Take the next round; true: taken. A published round that has been broken since is skipped. A round is taken even
 * if all workers are to save and end by now: the other workers have taken it, and wait for this one. */
static bool take(struct crun_page *p, struct crun_page_round *ret, enum crun_stop_reason why)
{
    const bool saves = why == CRUN_STOP_DRAIN || why == CRUN_STOP_RESIZE;
    uint32_t seq;
    if ((why != CRUN_STOP_NONE && !saves) || (saves && is_broken(p)))
        return false;
    if (!crun_page_read_round(p, ret, &seq) || seq == self.seq)
        return false;
    self.seq = seq;
    return true;
}

int crun_next_round(struct crun_info *ret, double timeout_s)
{
    struct crun_page *p = holding_page();
    struct crun_page_round r;
    if (!libcrun_is_time(timeout_s))
        return -EINVAL;
    if (!p)
        return -ENOTSUP;
    const int64_t deadline = deadline_of(timeout_s);
    for (;;) {
        const uint32_t seen = atomic_load(&p->wake);
        const enum crun_stop_reason why = crun_stop_reason();
        if (why == CRUN_STOP_HOLD)
            acknowledge(p);
        else if (take(p, &r, why))
            return enter(p, &r, ret);
        else if (why != CRUN_STOP_NONE)
            return -ECANCELED;
        else if (atomic_load(&p->next_seq) == self.seq)
            return -EAGAIN;
        const int left = clock_left(deadline);
        if (left == 0)
            return -ETIMEDOUT;
        const struct timespec ts = {.tv_sec = left / 1000, .tv_nsec = left % 1000 * 1000000L};
        syscall(SYS_futex, &p->wake, FUTEX_WAIT, seen, &ts, NULL, 0);
    }
}
