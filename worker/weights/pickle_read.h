/* The tensors named in a pickle that torch.save() wrote (data.pkl of a .pth file, or a file of torch before 1.6). Pure.
 *
 * Nothing is executed, and what is not needed is not made: objects, functions' results, bytes and large numbers are
 * passed over as what they are called. Read is one dict of tensors:
 *   - the member `part` of the outermost dict, if that is asked for and is a dict;
 *   - of that, or else of the outermost dict, the member "state_dict", or "model", or the only member that is a dict
 *     with more tensors than the dict itself has, or has such a dict; if that has none itself, of it the same;
 *   - if there is none, the dict itself.
 * Its members that are plain values, or tensors of types that are not taken, are passed over and counted; an object
 * among them could be a tensor in disguise and is refused. */
#ifndef CRUN_WORKER_WEIGHTS_PICKLE_READ_H
#define CRUN_WORKER_WEIGHTS_PICKLE_READ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "worker/ckpt/safetensors.h"

struct err;

#define PICKLE_BYTES_MAX ((size_t)256 << 20)
#define PICKLE_KEY_MAX 31
/* What takes another part of a file: in messages. */
#define PICKLE_PART_OPTIONS "--pretrained-part NAME; of predict, generate and convert --part NAME"

struct pickled_tensor {
    struct ckpt_tensor t;             /* data is NULL */
    char storage[PICKLE_KEY_MAX + 1]; /* its values lie in the file's storage of this name, */
    int64_t storage_count;            /* which has so many elements, */
    int64_t offset;                   /* from this element on, */
    int64_t stride[CKPT_DIMS_MAX];    /* with these strides (elements); all within the storage */
};

struct pickled_storage {
    char key[PICKLE_KEY_MAX + 1];
    int64_t count;
    int element_bytes;
};

struct pickle {
    struct pickled_tensor *t;
    size_t n;
    bool part_taken;                  /* it is the member that was asked for */
    size_t passed_over;               /* members of the dict that are none of these, */
    char passed[320];                 /* the first of them, and what it is */
    char another[400];                /* "'a' is taken, and not 'b'", which is a dict of as many tensors; or empty */
    struct pickled_storage *storages; /* pickle_read_old() alone: as they lie in the file, */
    size_t n_storages;
    size_t used; /* behind so many bytes */
};

/* part: NULL, or a member's name. ERR_CORRUPT: no pickle, or an inconsistent one. ERR_REFUSED names what is no tensor,
 * or members of which none is the one to take. */
int pickle_read(struct pickle *ret, const void *data, size_t n, const char *part, struct err *e);
void pickle_free(struct pickle *p);

/* A file of torch before 1.6: pickles with a number that says so, the version, the machine, the object, and the names
 * of the storages, which lie behind: for each a count (i64), and the elements. */
#define PICKLE_OLD_HEAD 32 /* bytes that pickle_is_old() looks at */
bool pickle_is_old(const void *head, size_t n);
int pickle_read_old(struct pickle *ret, const void *data, size_t n, const char *part, struct err *e);

/* A view may be larger than what it is of (torch's expand), but a small file must not become gigabytes: ERR_REFUSED for
 * a tensor of p, or all of them, of more than 64 times the bytes. path: for messages. */
int pickle_check_sizes(const struct pickle *p, int64_t file_bytes, const char *path, struct err *e);

/* The tensor out of its storage of so many bytes into dst (shape * dtype bytes), contiguous. ERR_CORRUPT: the storage
 * is smaller than the tensor says. */
int pickled_copy(const struct pickled_tensor *p, const char *storage, size_t bytes, void *dst, const char *path,
                 struct err *e);

#endif
