/* The GPU module: trainer-cuda.so, beside the program or in its libdir, loaded when a GPU is asked for or may be there
 * (decision 0008). Nothing else of trainer links CUDA.
 *
 *   device_open("cuda") -> cuda_module() -> dlopen, once a process -> a table: the device's ops, NCCL's collectives,
 *   what gpu-info asks
 *
 * What is missing (the module, a driver, a library that it needs) comes back as a sentence. */
#ifndef CRUN_WORKER_DEVICE_CUDA_MODULE_H
#define CRUN_WORKER_DEVICE_CUDA_MODULE_H

#include <stdbool.h>
#include <stddef.h>

#include "common/base/log.h"

struct comm_ops;
struct device_ops;
struct err;

#define CUDA_MODULE_ABI 5
#define CUDA_MODULE_SYMBOL "trainer_cuda_module"

struct cuda_module {
    int abi;                         /* CUDA_MODULE_ABI of the headers it was built with */
    const char *version;             /* of the project */
    const struct device_ops *device; /* "cuda" */
    const struct comm_ops *nccl;     /* "nccl"; NULL: built without NCCL */
    int (*count)(struct err *e);     /* usable GPUs; 0: *e says why, in one sentence */
    /* JSON of the device's properties as cuDNN wants them, malloc'ed: for device-less planning elsewhere. */
    int (*properties)(int index, char **ret, struct err *e);
    void (*log_init)(enum log_level max, const char *prefix); /* of its own copy: follows the program's */
};

/* The module, loaded once; NULL with *e set: the file or a library that it needs is missing, or it is of another
 * version. Any thread. */
const struct cuda_module *cuda_module(struct err *e);

/* After log_init(), by the thread that called it: the module's lines have the new level and prefix, too. Nothing where
 * the module is not loaded. */
void cuda_module_follow_log(void);

/* Is there a driver's device file? Asks nobody, so that a machine without a GPU starts at once. */
bool cuda_likely(void);

#endif
