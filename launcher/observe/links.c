/* Finds links of this machine that went down since the job began (links.h). */
#include "launcher/observe/links.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/file.h"
#include "launcher/place/gpus.h"

#define FOLDER_MAX 512

/* --- what changed */

void links_see(struct links *l, int64_t now_ms, const char *name, bool up, int drops)
{
    struct link_state *k = l->v;
    while (k < l->v + l->n && strcmp(k->name, name) != 0)
        k++;
    if (k == l->v + l->n) {
        if (l->known || l->n == LINKS_MAX)
            return;
        l->n++;
        *k = (struct link_state){.drops = -1};
        snprintf(k->name, sizeof k->name, "%s", name);
    } else if (k->was_up && (up != k->up || (k->drops >= 0 && drops > k->drops))) {
        k->changed_ms = now_ms;
    }
    k->was_up = k->was_up || up;
    k->up = up;
    k->drops = drops >= 0 ? drops : k->drops;
}

bool links_tell(struct links *l, int64_t now_ms, struct gauges_link *ret)
{
    const struct link_state *first = NULL;
    bool news = false;
    int same = 0;
    l->known = l->n > 0;
    for (const struct link_state *k = l->v; k < l->v + l->n; k++) {
        news = news || k->changed_ms == now_ms;
        if (k->changed_ms && (!first || k->up < first->up || (k->up == first->up && k->changed_ms > first->changed_ms)))
            first = k;
    }
    for (const struct link_state *k = l->v; k < l->v + l->n; k++)
        same += k != first && k->changed_ms && k->up == first->up;
    if (!news)
        return false;
    *ret = (struct gauges_link){.ms = first->changed_ms, .down = !first->up};
    const int at =
        snprintf(ret->text, sizeof ret->text, "%s went down%s", first->name, first->up ? " and came back" : "");
    if (same)
        snprintf(ret->text + at, sizeof ret->text - (size_t)at, ", as did %d other link%s", same, same > 1 ? "s" : "");
    return true;
}

/* --- adapters */

static void see_adapter(struct links *l, int64_t now_ms, const char *folder, const char *name)
{
    char state[32];
    if (file_read_line(state, sizeof state, "%s/operstate", folder) > 0)
        links_see(l, now_ms, name, !strstr("down lowerlayerdown notpresent", state),
                  file_read_int(-1, "%s/carrier_changes", folder));
}

static bool has_device(const char *folder)
{
    char path[FOLDER_MAX + 16];
    snprintf(path, sizeof path, "%s/device", folder);
    return access(path, F_OK) == 0;
}

/* The next entry of a folder, and its path; NULL: there is none, or no such folder. */
static const char *next_in(DIR *d, const char *at, char path[FOLDER_MAX])
{
    const struct dirent *e;
    while (d && (e = readdir(d)))
        if (e->d_name[0] != '.' && snprintf(path, FOLDER_MAX, "%s/%s", at, e->d_name) < FOLDER_MAX)
            return e->d_name;
    if (d)
        closedir(d);
    return NULL;
}

static void look_at_net(struct links *l, int64_t now_ms, const char *at)
{
    char path[FOLDER_MAX];
    bool devices = false;
    DIR *d = opendir(at);
    while (next_in(d, at, path))
        devices = devices || has_device(path);
    d = opendir(at);
    for (const char *name; (name = next_in(d, at, path));)
        if (strcmp(name, "lo") != 0 && (!devices || has_device(path)))
            see_adapter(l, now_ms, path, name);
}

static void look_at_ports(struct links *l, int64_t now_ms, const char *adapter, const char *at)
{
    char path[FOLDER_MAX], state[32], name[96];
    DIR *d = opendir(at);
    for (const char *port; (port = next_in(d, at, path));)
        if (file_read_line(state, sizeof state, "%s/state", path) > 0) { /* "4: ACTIVE" */
            snprintf(name, sizeof name, "port %.8s of %.40s", port, adapter);
            links_see(l, now_ms, name, strstr(state, "ACTIVE"), file_read_int(-1, "%s/counters/link_downed", path));
        }
}

/* Has the machine lost it? A file that cannot be read for another reason says nothing. */
static bool is_gone(const char *root, const char *link)
{
    char path[FOLDER_MAX], port[9], adapter[41];
    if (sscanf(link, "port %8s of %40s", port, adapter) == 2)
        snprintf(path, sizeof path, "%s/sys/class/infiniband/%s/ports/%s", root, adapter, port);
    else
        snprintf(path, sizeof path, "%s/sys/class/net/%.63s", root, link);
    return access(path, F_OK) < 0 && errno == ENOENT;
}

void links_look_at_adapters(struct links *l, int64_t now_ms, const char *root)
{
    char at[FOLDER_MAX], path[FOLDER_MAX], ports[FOLDER_MAX + 8];
    snprintf(at, sizeof at, "%s/sys/class/net", root);
    look_at_net(l, now_ms, at);
    snprintf(at, sizeof at, "%s/sys/class/infiniband", root);
    DIR *d = opendir(at);
    for (const char *name; (name = next_in(d, at, path));) {
        snprintf(ports, sizeof ports, "%s/ports", path);
        look_at_ports(l, now_ms, name, ports);
    }
    for (struct link_state *k = l->v; k < l->v + l->n; k++)
        if (k->up && is_gone(root, k->name))
            links_see(l, now_ms, k->name, false, -1);
}

/* --- NVLinks */

void links_look_at_nvlinks(struct links *l, int64_t now_ms, const struct nvml_lib *lib, const struct gpu *gpus, int n)
{
    for (int i = 0; i < n; i++)
        for (unsigned k = 0; gpus[i].device && k < NVML_LINKS; k++) {
            char name[64];
            int active;
            unsigned long long recoveries = 0;
            if (lib->nvmlDeviceGetNvLinkState(gpus[i].device, k, &active) != NVML_SUCCESS)
                continue; /* no such link, or the GPU does not answer: an Xid says that */
            const int rc = lib->nvmlDeviceGetNvLinkErrorCounter(gpus[i].device, k, NVML_RECOVERIES, &recoveries);
            snprintf(name, sizeof name, "NVLink %u of %s", k, gpus[i].pci);
            links_see(l, now_ms, name, active, rc == NVML_SUCCESS ? (int)recoveries : -1);
        }
}
