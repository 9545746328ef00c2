/* Files of tokens: the format of llm.c, which token_set.c reads, and `trainer make-data text`, which writes it. */
#ifndef CRUN_WORKER_TOKEN_SET_H
#define CRUN_WORKER_TOKEN_SET_H

struct err;

enum {
    TOKEN_MAGIC_U16 = 20240520,
    TOKEN_MAGIC_U32 = 20240801,
    TOKEN_HEADER = 1024 /* bytes: int32 magic, version, number of tokens; zeros */
};

struct text_options {
    const char *text; /* a file of any bytes */
    const char *out;  /* a folder, which gets train.bin and val.bin, one token a byte */
    double val_share; /* of the bytes, the last ones; 0: there is no val.bin */
};

/* What stands in out under these names is replaced, each file as a whole; a val.bin that is not written is removed.
 * ret: tokens of both files. ERR_DATA: the text is empty, too long for one file, or none; ERR_OUTPUT. */
int text_make(const struct text_options *o, long long ret[2], struct err *e);

#endif
