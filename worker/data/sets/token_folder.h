/* The files of tokens in a folder: NAME.bin in byte order of their names. */
#ifndef CRUN_WORKER_TOKEN_FOLDER_H
#define CRUN_WORKER_TOKEN_FOLDER_H

#include <stdbool.h>
#include <stddef.h>

#include "common/base/buf.h"

struct err;

struct token_folder {
    char **paths;
    size_t n, cap;
    struct buf passed_over; /* a sentence on what in the folder is taken for no tokens; empty: nothing is */
};

/* If some names have "train" in them and others "val", only the files of one part are listed; testing: of "val". Hidden
 * names and names with other endings are no files of tokens. ERR_DATA: there is none, or one is a link that leads
 * nowhere; the sentence says what is there instead. On failure there is nothing to free. */
int token_folder_list(struct token_folder *ret, const char *dir, bool testing, struct err *e);
void token_folder_free(struct token_folder *f);

#endif
