/* The links by which a machine reaches others: network adapters, ports of InfiniBand, NVLinks. Each look compares them
 * with what they were when the job began; only a link that was up can go down, and an adapter or a port that the
 * machine has lost (ip link del) is down. The gauges process looks (gauges.h).
 *
 * Adapters are those of a device, not bridges, bonds or the ends of containers; but in a container that has no device
 * all that it has, without the loopback. Errors that a link corrects by itself (replays) count as none. */
#ifndef CRUN_LAUNCHER_LINKS_H
#define CRUN_LAUNCHER_LINKS_H

#include <stdbool.h>
#include <stdint.h>

struct gpu;
struct nvml_lib;

#define LINKS_MAX 1536

struct link_state {
    char name[64];
    bool was_up, up;    /* at some look; at the last one */
    int drops;          /* how often it has gone down or up, by its driver; -1: not known */
    int64_t changed_ms; /* clock_ms() of the look that saw it change; 0: it never did */
};

struct links { /* zeroed: nothing was looked at */
    struct link_state v[LINKS_MAX];
    int n;
    bool known; /* links that appear from now on are of no interest */
};

/* What has become of a link: of those that are down the newest, else the one that changed last. */
struct gauges_link {
    int64_t ms;     /* when that was seen; 0: none has changed */
    uint32_t down;  /* it still is */
    char text[116]; /* "eth0 went down, as did 2 other links", "port 1 of mlx5_0 went down and came back" */
};

/* Note the state of one link. Pure. */
void links_see(struct links *l, int64_t now_ms, const char *name, bool up, int drops);
/* A look is over. True: a link changed in it. Pure. */
bool links_tell(struct links *l, int64_t now_ms, struct gauges_link *ret);

/* Look at all; root: of the machine's files, "": this one's. A driver may block the caller. */
void links_look_at_adapters(struct links *l, int64_t now_ms, const char *root);
void links_look_at_nvlinks(struct links *l, int64_t now_ms, const struct nvml_lib *lib, const struct gpu *gpus, int n);

#endif
