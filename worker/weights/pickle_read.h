/* The tensors named in a pickle that torch.save() wrote (data.pkl of a .pth file). Pure.
 *
 * Nothing is executed: of pickle's opcodes those are known that plain containers, numbers, strings and tensors take, of
 * callables those that rebuild tensors; anything else is refused by name. What is read is the outermost dict, or its
 * member "state_dict" (or "model") if that is one; a prefix "module." (DistributedDataParallel's) is dropped from
 * names. */
#ifndef CRUN_WORKER_WEIGHTS_PICKLE_READ_H
#define CRUN_WORKER_WEIGHTS_PICKLE_READ_H

#include <stddef.h>
#include <stdint.h>

#include "worker/ckpt/safetensors.h"

struct err;

#define PICKLE_BYTES_MAX ((size_t)16 << 20)
#define PICKLE_KEY_MAX 31

struct pickled_tensor {
    struct ckpt_tensor t;             /* data is NULL */
    char storage[PICKLE_KEY_MAX + 1]; /* its values lie in the file's entry data/<storage>, */
    int64_t storage_count;            /* which has so many elements, */
    int64_t offset;                   /* from this element on, */
    int64_t stride[CKPT_DIMS_MAX];    /* with these strides (elements); all within the storage */
};

struct pickle {
    struct pickled_tensor *t;
    size_t n;
};

/* ERR_CORRUPT: no pickle, or an inconsistent one. ERR_REFUSED names what is no tensor or would have to be executed. */
int pickle_read(struct pickle *ret, const void *data, size_t n, struct err *e);
void pickle_free(struct pickle *p);

#endif
