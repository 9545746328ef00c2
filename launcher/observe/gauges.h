/* Measures a node's load for status pages (processor, memory, GPUs), and looks for faults of its GPUs and links for
 * the failure report. A helper process does it (guardian.h), because drivers may hang for good. It writes into a page
 * that the agent reads without waiting.
 *
 *     guardian -- starts --> gauges process -- /proc -------> page <-- reads -- agent
 *                             + thread ----- NVML -------->
 *                             + thread ----- adapters ---->
 *
 * A driver that hangs blocks only its thread: the last values of that grow old, the others are updated. */
#ifndef CRUN_LAUNCHER_GAUGES_H
#define CRUN_LAUNCHER_GAUGES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "launcher/observe/links.h"

#define GAUGES_EVERY_MS 5000
#define GAUGES_OLD_MS 30000 /* older measurements are not shown */
#define GAUGES_GPUS 64

struct gauges_host {
    double cpu; /* share of all the host's processors that was busy since the measurement before: 0 to 1 */
    uint64_t memory_used, memory_total; /* bytes, of the host */
};

struct gauges_gpu {
    uint32_t percent;                   /* percent of the time in which a kernel ran */
    uint32_t memory_used, memory_total; /* MiB */
};

struct gauges_gpus {
    uint32_t n;
    struct gauges_gpu v[GAUGES_GPUS]; /* those that CUDA_VISIBLE_DEVICES leaves, in its order */
};

/* Faults of all GPUs of the machine that crun may use. */
struct gauges_faults {
    int64_t xid_ms; /* clock_ms() when the newest Xid came, 0: none */
    uint32_t xid;
    /* PCI address of the GPU with the Xid; of one that will remap rows of memory at its next reset; "": none */
    char xid_pci[32], remap_pci[32];
};

#define GAUGES_WORDS(type) ((sizeof(type) + sizeof(uint64_t) - 1) / sizeof(uint64_t))

/* The shared page, zeroed before the first measurement. Each part has one writer; a reader tries again if the count
 * is odd, or has changed. */
struct gauges_page {
    _Atomic uint32_t host_count, gpus_count, faults_count, nvlinks_count, adapters_count;
    /* clock_ms() of the newest measurement, 0: none */
    _Atomic int64_t host_at_ms, gpus_at_ms, faults_at_ms, nvlinks_at_ms, adapters_at_ms;
    _Atomic uint64_t host[GAUGES_WORDS(struct gauges_host)], gpus[GAUGES_WORDS(struct gauges_gpus)],
        faults[GAUGES_WORDS(struct gauges_faults)], nvlinks[GAUGES_WORDS(struct gauges_link)],
        adapters[GAUGES_WORDS(struct gauges_link)];
};

/* Run the process until end_fd is readable. page: a struct gauges_page. Returns its exit code; the caller calls
 * _exit(2), because the thread may be blocked in the kernel. */
int gauges_process(void *page, int end_fd);

/* By the one writer of that part. */
void gauges_write_host(struct gauges_page *p, int64_t now_ms, const struct gauges_host *h);
void gauges_write_gpus(struct gauges_page *p, int64_t now_ms, const struct gauges_gpus *g);

/* The newest values; any process that shares the page may read. False: there are none, or they are older than
 * GAUGES_OLD_MS. */
bool gauges_read_host(struct gauges_page *p, int64_t now_ms, struct gauges_host *ret);
bool gauges_read_gpus(struct gauges_page *p, int64_t now_ms, struct gauges_gpus *ret);
/* However old; false: none was seen. */
bool gauges_read_faults(struct gauges_page *p, struct gauges_faults *ret);
bool gauges_read_link(struct gauges_page *p, struct gauges_link *ret); /* one that is down, else the newest change */

/* Parse the line "cpu ..." of /proc/stat: busy ticks, and all ticks. False: there is no such line. Pure. */
bool gauges_parse_stat(const char *text, uint64_t *ret_busy, uint64_t *ret_all);
/* Of /proc/meminfo, bytes. Pure. */
bool gauges_parse_meminfo(const char *text, uint64_t *ret_used, uint64_t *ret_total);

#endif
