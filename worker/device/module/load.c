/* Finding the GPU module. Looked for, in this order:
 *   CRUN_CUDA_MODULE            a file; nothing else then
 *   device/cuda/ beside the program   a build folder
 *   ../<libdir>/crun/                 installed, wherever the tree was moved to
 *   CUDA_MODULE_DIR                   installed, as configured */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/err.h"
#include "worker/device/module/module.h"
#include "worker/device/module/needed.h"

#define FILE_NAME "trainer-cuda.so"
enum { PATH_BYTES = 4096 };

static pthread_once_t once = PTHREAD_ONCE_INIT;
static const struct cuda_module *_Atomic module;
static struct err why;

/* The folder of the program, without a slash at the end; "" if it is not known. */
static void program_folder(char *out, size_t cap)
{
    const ssize_t n = readlink("/proc/self/exe", out, cap - 1);
    out[n > 0 ? n : 0] = '\0';
    char *slash = strrchr(out, '/');
    *(slash ? slash : out) = '\0';
}

static int find_module(char *out, size_t cap)
{
    const char *given = getenv("CRUN_CUDA_MODULE");
    char folder[PATH_BYTES];
    if (given && *given) {
        snprintf(out, cap, "%s", given);
        return access(out, F_OK) == 0 ? 0
                                      : err_errno(&why, ENOENT, "the GPU module that CRUN_CUDA_MODULE names, %s", out);
    }
    program_folder(folder, sizeof folder);
    snprintf(out, cap, "%s/device/cuda/" FILE_NAME, folder);
    if (access(out, F_OK) == 0)
        return 0;
    snprintf(out, cap, "%s/" CUDA_MODULE_FROM_BIN "/" FILE_NAME, folder);
    if (access(out, F_OK) == 0)
        return 0;
    snprintf(out, cap, "%s", CUDA_MODULE_DIR "/" FILE_NAME);
    if (access(out, F_OK) == 0)
        return 0;
    return err_set(&why, -ENODEV,
                   "trainer's GPU module (" FILE_NAME
                   ") is not installed: it is Debian's package crun-trainer-cuda, or a "
                   "build's where nvcc and cuDNN are; --device cpu or ref will do without");
}

/* dlopen names the first library that is missing; whoever installs one would rather know them all. */
static int load_failed(const char *path)
{
    const char *text = dlerror();
    char names[256], report[400];
    snprintf(report, sizeof report, "%.399s", text ? text : path); /* the next dlopen overwrites it */
    const int n = needed_missing(path, names, sizeof names);
    if (n == 0)
        return err_set(&why, -ENODEV, "the GPU module cannot be loaded: %s", report);
    return err_set(
        &why, -ENODEV,
        "the GPU module needs %s, which %s not installed here (NVIDIA's packages, which docs/guide/gpu.md names; "
        "or the folder in LD_LIBRARY_PATH)",
        names, n == 1 ? "is" : "are");
}

static void follow_log(const struct cuda_module *m)
{
    char prefix[LOG_PREFIX_MAX];
    log_prefix(prefix);
    m->log_init(log_level(), prefix);
}

static void load_module(void)
{
    char path[PATH_BYTES + 64];
    if (find_module(path, sizeof path) < 0) {
        why.code = -ENODEV;
        return;
    }
    void *so = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!so) {
        load_failed(path);
        return;
    }
    const struct cuda_module *m = dlsym(so, CUDA_MODULE_SYMBOL);
    if (!m)
        err_set(&why, -ENODEV, "%s is no GPU module of trainer", path);
    else if (m->abi != CUDA_MODULE_ABI || strcmp(m->version, CRUN_VERSION) != 0)
        err_set(&why, -ENODEV, "%s is of trainer %s (ABI %d), this is trainer " CRUN_VERSION " (ABI %d)", path,
                m->version, m->abi, CUDA_MODULE_ABI);
    else {
        follow_log(m);
        module = m;
    }
    if (!module)
        dlclose(so);
}

const struct cuda_module *cuda_module(struct err *e)
{
    pthread_once(&once, load_module);
    if (!module)
        err_set(e, why.code, "%s", why.text);
    return module;
}

void cuda_module_follow_log(void)
{
    const struct cuda_module *m = module;
    if (m)
        follow_log(m);
}

bool cuda_likely(void)
{
    return access("/dev/nvidiactl", F_OK) == 0 || access("/dev/dxg", F_OK) == 0;
}
