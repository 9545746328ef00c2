/* Collects the facts of this machine: kernel, token, names, folders, GPUs (facts.h). */
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "common/auth/auth.h"
#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/base/file.h"
#include "common/net/addr.h"
#include "common/net/resolve.h"
#include "launcher/place/gpus.h"
#include "launcher/tools/doctor/facts.h"

#define RESOLVE_MS 5000

static void read_kernel(struct facts *f)
{
    struct utsname u = {0};
    const int fd = (int)syscall(SYS_pidfd_open, getpid(), 0);
    uname(&u);
    f->pidfd = fd >= 0;
    if (fd >= 0)
        close(fd);
    f->proc = access("/proc/self/stat", R_OK) == 0;
    snprintf(f->kernel, sizeof f->kernel, "%s", u.release);
    snprintf(f->name, sizeof f->name, "%s", u.nodename);
    snprintf(f->version, sizeof f->version, "%s", CRUN_VERSION);
}

/* --- the token: only a proof of it leaves the machine */

static const char *token_path(const struct facts_ask *ask, char *out, size_t cap)
{
    const char *named = ask->token_file ? ask->token_file : getenv("CRUN_TOKEN_FILE"), *home = getenv("HOME");
    if (named && *named)
        return named;
    snprintf(out, cap, "%s/.config/crun/token", home ? home : "");
    return access(out, F_OK) == 0 || errno != ENOENT ? out : NULL; /* none was made yet */
}

static void read_token(const struct facts_ask *ask, struct facts *f)
{
    char path[4096], proof[AUTH_HEX + 1];
    struct auth_tokens tokens = {0};
    struct err e = {0};
    const char *at = token_path(ask, path, sizeof path), *variable = getenv(AUTH_VARIABLE);
    const bool by_variable = variable && *variable && (!at || at == path);
    enum auth_origin origin;
    if (!at && !by_variable)
        return;
    int rc = by_variable ? auth_tokens_own(&tokens, NULL, &origin, &e) : auth_tokens_read(&tokens, at, &e);
    if (rc == 0)
        rc = auth_fingerprint(&tokens.v[0], ask->nonce, proof, &e);
    auth_tokens_free(&tokens);
    if (rc < 0)
        snprintf(f->token_error, sizeof f->token_error, "%.*s", (int)sizeof f->token_error - 1, e.text);
    else
        snprintf(f->token, sizeof f->token, "%s", proof);
}

/* --- names, folders, GPUs */

/* Would PyTorch's Gloo listen on loopback? It uses the first address of the own name, unless GLOO_SOCKET_IFNAME
 * names an interface. */
static void read_own_address(const struct addrinfo *first, struct facts *f)
{
    uint8_t ip[ADDR_BYTES];
    char text[INET6_ADDRSTRLEN];
    const char *iface = getenv("GLOO_SOCKET_IFNAME");
    if (!(iface && *iface) && addr_of(first->ai_addr, ip) && addr_is_loopback(ip))
        snprintf(f->own_addr, sizeof f->own_addr, "%s", addr_text(ip, text));
}

static void read_own_name(struct facts *f)
{
    struct addrinfo *found = NULL;
    struct err e = {0};
    if (resolve(f->name, "1", clock_deadline(RESOLVE_MS), -1, &found, &e) < 0)
        snprintf(f->own_name, sizeof f->own_name, "%.*s", (int)sizeof f->own_name - 1, e.text);
    if (!found)
        return;
    read_own_address(found, f);
    freeaddrinfo(found);
}

/* Make files in TMPDIR as the launcher does: error records, sockets. */
static void read_tmp(struct facts *f)
{
    const char *named = getenv("TMPDIR"), *folder = named && *named ? named : "/tmp";
    char path[4096];
    snprintf(path, sizeof path, "%s/crun-doctor-XXXXXX", folder);
    const int fd = mkostemp(path, O_CLOEXEC);
    if (fd < 0 || write(fd, path, sizeof path) != (ssize_t)sizeof path)
        snprintf(f->tmp_error, sizeof f->tmp_error, "%.300s: %s", folder, strerror(errno));
    if (fd < 0)
        return;
    unlink(path);
    close(fd);
}

static void read_folder(const struct facts_ask *ask, struct facts *f)
{
    if (ask->folder && chdir(ask->folder) < 0)
        snprintf(f->folder_error, sizeof f->folder_error, "%.300s: %s", ask->folder, strerror(errno));
}

/* Count NVIDIA's displays and 3D controllers (class 03) on the PCI bus. */
static int count_pci_gpus(void)
{
    char folder[512], text[32];
    int n = 0;
    snprintf(folder, sizeof folder, "%s/sys/bus/pci/devices", machine_root());
    DIR *d = opendir(folder);
    for (const struct dirent *at; d && (at = readdir(d));)
        n += file_read_line(text, sizeof text, "%s/%s/vendor", folder, at->d_name) > 0 && strcmp(text, "0x10de") == 0 &&
             file_read_line(text, sizeof text, "%s/%s/class", folder, at->d_name) > 0 && strncmp(text, "0x03", 4) == 0;
    if (d)
        closedir(d);
    return n;
}

static void read_gpus(struct facts *f)
{
    struct gpu gpus[GPUS_MAX];
    struct err e = {0};
    f->pci_gpus = count_pci_gpus();
    f->gpus = gpus_find(gpus);
    if (f->gpus > 0)
        snprintf(f->gpu, sizeof f->gpu, "%s", gpus[0].name);
    if ((f->gpus > 0 || f->pci_gpus > 0) && !nvml_lib(&e))
        snprintf(f->gpu_error, sizeof f->gpu_error, "%.*s", (int)sizeof f->gpu_error - 1, e.text);
}

void facts_read(const struct facts_ask *ask, struct facts *ret)
{
    *ret = (struct facts){0};
    read_folder(ask, ret); /* first: the rest then looks as a job in that folder would */
    read_kernel(ret);
    read_token(ask, ret);
    read_own_name(ret);
    read_tmp(ret);
    read_gpus(ret);
    facts_read_limits(ret);
    facts_read_programs(ret);
    facts_read_net(ret);
}
