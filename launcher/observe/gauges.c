/* The gauges process: measures processor, memory and GPUs, and looks for faults of GPUs and links (gauges.h). */
#include "launcher/observe/gauges.h"

#include <errno.h>
#include <inttypes.h>
#include <linux/rtnetlink.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/net/apart.h"
#include "launcher/place/gpus.h"

#define FIRST_MS 500 /* ms: processor load needs two measurements */
#define READ_TRIES 16
#define BURST_MS 50 /* links change together */

/* --- the page */

struct part {
    _Atomic uint32_t *count;
    _Atomic int64_t *at_ms;
    _Atomic uint64_t *words;
    size_t n;
};

#define PART(p, name)                                                                                                  \
    ((struct part){&(p)->name##_count, &(p)->name##_at_ms, (p)->name, sizeof(p)->name / sizeof *(p)->name})

enum { WORDS_MAX = GAUGES_WORDS(struct gauges_gpus) }; /* of the greatest */

/* Write under a sequence count. It is odd already if an earlier writer was killed in the middle. */
static void write_part(struct part h, int64_t now_ms, const void *from, size_t size)
{
    uint64_t words[WORDS_MAX] = {0};
    const uint32_t writing = atomic_load_explicit(h.count, memory_order_relaxed) | 1;
    memcpy(words, from, size);
    atomic_store_explicit(h.count, writing, memory_order_relaxed);
    atomic_thread_fence(memory_order_release); /* a reader that sees a word of this write also sees the changed count */
    for (size_t i = 0; i < h.n; i++)
        atomic_store_explicit(&h.words[i], words[i], memory_order_relaxed);
    atomic_store_explicit(h.at_ms, now_ms, memory_order_relaxed);
    atomic_store_explicit(h.count, writing + 1, memory_order_release);
}

static bool read_part(struct part h, int64_t now_ms, void *to, size_t size)
{
    uint64_t words[WORDS_MAX];
    for (int try = 0; try < READ_TRIES; try++) {
        const uint32_t before = atomic_load_explicit(h.count, memory_order_acquire);
        const int64_t at = atomic_load_explicit(h.at_ms, memory_order_relaxed);
        for (size_t i = 0; i < h.n; i++)
            words[i] = atomic_load_explicit(&h.words[i], memory_order_relaxed);
        atomic_thread_fence(memory_order_acquire);
        if (before % 2 || atomic_load_explicit(h.count, memory_order_relaxed) != before)
            continue;
        if (at == 0 || now_ms - at > GAUGES_OLD_MS)
            return false;
        memcpy(to, words, size);
        return true;
    }
    return false;
}

void gauges_write_host(struct gauges_page *p, int64_t now_ms, const struct gauges_host *h)
{
    write_part(PART(p, host), now_ms, h, sizeof *h);
}

void gauges_write_gpus(struct gauges_page *p, int64_t now_ms, const struct gauges_gpus *g)
{
    write_part(PART(p, gpus), now_ms, g, sizeof *g);
}

bool gauges_read_host(struct gauges_page *p, int64_t now_ms, struct gauges_host *ret)
{
    return read_part(PART(p, host), now_ms, ret, sizeof *ret);
}

bool gauges_read_gpus(struct gauges_page *p, int64_t now_ms, struct gauges_gpus *ret)
{
    return read_part(PART(p, gpus), now_ms, ret, sizeof *ret) && ret->n <= GAUGES_GPUS;
}

bool gauges_read_faults(struct gauges_page *p, struct gauges_faults *ret)
{
    return read_part(PART(p, faults), 0, ret, sizeof *ret);
}

bool gauges_read_link(struct gauges_page *p, struct gauges_link *ret)
{
    struct gauges_link other;
    const bool any = read_part(PART(p, adapters), 0, ret, sizeof *ret);
    if (!read_part(PART(p, nvlinks), 0, &other, sizeof other))
        return any;
    if (!any || other.down > ret->down || (other.down == ret->down && other.ms > ret->ms))
        *ret = other;
    return true;
}

/* --- the host */

/* Fields: user nice system idle iowait irq softirq steal; guest time is part of user time. */
bool gauges_parse_stat(const char *text, uint64_t *ret_busy, uint64_t *ret_all)
{
    uint64_t t[8] = {0};
    if (strncmp(text, "cpu ", 4) != 0 ||
        sscanf(text, "cpu %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64,
               &t[0], &t[1], &t[2], &t[3], &t[4], &t[5], &t[6], &t[7]) < 4)
        return false;
    *ret_all = 0;
    for (int i = 0; i < 8; i++)
        *ret_all += t[i];
    *ret_busy = *ret_all - t[3] - t[4];
    return true;
}

static bool find_kb(const char *text, const char *name, uint64_t *ret)
{
    const char *at = strstr(text, name);
    if (!at)
        return false;
    *ret = strtoull(at + strlen(name), NULL, 10) << 10;
    return true;
}

bool gauges_parse_meminfo(const char *text, uint64_t *ret_used, uint64_t *ret_total)
{
    uint64_t available;
    if (!find_kb(text, "MemTotal:", ret_total) || !find_kb(text, "MemAvailable:", &available))
        return false;
    *ret_used = *ret_total > available ? *ret_total - available : 0;
    return true;
}

struct ticks {
    uint64_t busy, all;
};

static void measure_host(struct gauges_page *p, struct ticks *before)
{
    char text[4096];
    struct gauges_host h = {0};
    struct ticks now;
    if (file_read_text(text, sizeof text, "/proc/stat") < 0 || !gauges_parse_stat(text, &now.busy, &now.all))
        return;
    const bool again = before->all > 0 && now.all > before->all && now.busy >= before->busy;
    h.cpu = again ? (double)(now.busy - before->busy) / (double)(now.all - before->all) : 0;
    *before = now;
    if (!again || file_read_text(text, sizeof text, "/proc/meminfo") < 0 ||
        !gauges_parse_meminfo(text, &h.memory_used, &h.memory_total))
        return;
    gauges_write_host(p, clock_ms(), &h);
}

/* --- its GPUs */

static void measure_gpus(struct gauges_page *p, const struct nvml_lib *l, const struct gpu *gpus, int n)
{
    struct gauges_gpus g = {0};
    for (int i = 0; i < n && g.n < GAUGES_GPUS; i++) {
        struct nvml_utilization busy = {0};
        struct nvml_memory memory = {0};
        if (!gpus[i].device || l->nvmlDeviceGetMemoryInfo(gpus[i].device, &memory) != NVML_SUCCESS)
            continue;
        l->nvmlDeviceGetUtilizationRates(gpus[i].device, &busy);
        g.v[g.n++] = (struct gauges_gpu){busy.gpu, (uint32_t)(memory.used >> 20), (uint32_t)(memory.total >> 20)};
    }
    gauges_write_gpus(p, clock_ms(), &g);
}

static void note_remaps(const struct nvml_lib *l, const struct gpu *gpus, int n, struct gauges_faults *f)
{
    unsigned pending, others[3];
    for (int i = 0; i < n && !f->remap_pci[0]; i++)
        if (gpus[i].device &&
            l->nvmlDeviceGetRemappedRows(gpus[i].device, &others[0], &others[1], &pending, &others[2]) ==
                NVML_SUCCESS &&
            pending)
            snprintf(f->remap_pci, sizeof f->remap_pci, "%s", gpus[i].pci);
}

/* Wait until the next measurement is due, or a GPU reports a fault. set NULL: no GPU reports faults. */
static void wait_for_fault(const struct nvml_lib *l, nvml_events set, const struct gpu *gpus, int n,
                           struct gauges_faults *f)
{
    struct nvml_event ev = {0};
    const int64_t until = clock_ms() + GAUGES_EVERY_MS;
    if (set && l->nvmlEventSetWait_v2(set, &ev, GAUGES_EVERY_MS) == NVML_SUCCESS && ev.type == NVML_XID) {
        f->xid = (uint32_t)ev.data;
        f->xid_ms = clock_ms();
        for (int i = 0; i < n; i++)
            if (gpus[i].device == ev.device)
                snprintf(f->xid_pci, sizeof f->xid_pci, "%s", gpus[i].pci);
    } else if (clock_ms() < until) { /* it does not wait */
        poll(NULL, 0, (int)(until - clock_ms()));
    }
}

static void *gpu_thread(void *page)
{
    static struct gpu gpus[GPUS_MAX];
    struct links *links = calloc(1, sizeof *links);
    struct gauges_page *p = page;
    struct gauges_link told;
    const struct nvml_lib *l = nvml_lib(NULL);
    const int n = l && links ? gpus_usable(gpus) : 0;
    struct gauges_faults faults = {0};
    nvml_events set = NULL;
    bool watched = n > 0 && l->nvmlEventSetCreate(&set) == NVML_SUCCESS;
    for (int i = 0; i < n; i++)
        watched =
            watched && gpus[i].device && l->nvmlDeviceRegisterEvents(gpus[i].device, NVML_XID, set) == NVML_SUCCESS;
    while (n > 0) {
        measure_gpus(p, l, gpus, n);
        const int64_t now_ms = clock_ms();
        links_look_at_nvlinks(links, now_ms, l, gpus, n);
        if (links_tell(links, now_ms, &told))
            write_part(PART(p, nvlinks), now_ms, &told, sizeof told);
        note_remaps(l, gpus, n, &faults);
        if (faults.xid_ms || faults.remap_pci[0])
            write_part(PART(p, faults), clock_ms(), &faults, sizeof faults);
        wait_for_fault(l, watched ? set : NULL, gpus, n, &faults);
        if (faults.xid_ms)
            write_part(PART(p, faults), clock_ms(), &faults, sizeof faults);
    }
    return NULL;
}

/* --- its adapters */

/* Wait until the kernel reports a change of some link, or the next look is due. */
static void wait_for_change(int netlink)
{
    struct pollfd news = {.fd = netlink, .events = POLLIN};
    char text[8192];
    if (poll(&news, 1, GAUGES_EVERY_MS) <= 0)
        return;
    poll(NULL, 0, BURST_MS);
    while (recv(netlink, text, sizeof text, MSG_DONTWAIT) > 0 || errno == ENOBUFS) /* it kept no more */
        errno = 0;
}

static void *adapter_thread(void *page)
{
    struct links *links = calloc(1, sizeof *links);
    const struct sockaddr_nl link_news = {.nl_family = AF_NETLINK, .nl_groups = RTMGRP_LINK};
    const int netlink = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
    const bool hears = netlink >= 0 && bind(netlink, (const struct sockaddr *)&link_news, sizeof link_news) == 0;
    struct gauges_page *p = page;
    for (struct gauges_link told; links; wait_for_change(hears ? netlink : -1)) {
        const int64_t now_ms = clock_ms();
        links_look_at_adapters(links, now_ms, machine_root());
        if (links_tell(links, now_ms, &told))
            write_part(PART(p, adapters), now_ms, &told, sizeof told);
    }
    return NULL;
}

/* --- the process */

int gauges_process(void *page, int end_fd)
{
    struct pollfd end = {.fd = end_fd, .events = POLLIN};
    struct ticks before = {0};
    apart_start(gpu_thread, page, 0);
    apart_start(adapter_thread, page, 0);
    measure_host(page, &before);
    for (int wait_ms = FIRST_MS; poll(&end, 1, wait_ms) == 0; wait_ms = GAUGES_EVERY_MS)
        measure_host(page, &before);
    return 0;
}
