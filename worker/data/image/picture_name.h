/* Which files of a folder are pictures: by their names, the same for training sets and for trainer predict. */
#ifndef CRUN_WORKER_PICTURE_NAME_H
#define CRUN_WORKER_PICTURE_NAME_H

#include <stdbool.h>
#include <stddef.h>

/* Files and folders of this name are passed over: .name, as the ._name.jpg that some systems put beside name.jpg. */
bool picture_hidden(const char *name);
/* By its suffix, in any case, something that image_decode() can read. */
bool picture_readable(const char *name);
const char *picture_suffixes(void); /* of those, for messages: ".jpg, .jpeg, ..." */

/* Files whose suffix says that they are pictures of other formats (.webp, ...): by suffix. All-zero: none. */
#define PICTURE_FORMATS_MAX 16
struct pictures_left_out {
    size_t n[PICTURE_FORMATS_MAX], all;
};
void pictures_left_out_count(struct pictures_left_out *l, const char *name); /* of any file */
/* "3 pictures of other formats are left out: 2 .webp, 1 .gif; readable are .jpg, ..." */
#define PICTURES_LEFT_OUT_TEXT 512
const char *pictures_left_out_text(const struct pictures_left_out *l, char out[PICTURES_LEFT_OUT_TEXT]);

#endif
