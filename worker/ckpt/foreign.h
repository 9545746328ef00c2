/* What other libraries call the tensors of torchvision's vision transformers. Pure. */
#ifndef CRUN_WORKER_CKPT_FOREIGN_H
#define CRUN_WORKER_CKPT_FOREIGN_H

enum { FOREIGN_LIBRARIES = 3, FOREIGN_PARTS = 3, FOREIGN_NAME = 256 };

/* The names that library `which` (Hugging Face's with a head; its bare model; timm) gives to what is called `name`
 * here: how many, 0 if it has none. Of three, queries, keys and values, the tensor here is one behind the other. */
int foreign_names(const char *name, int which, char out[FOREIGN_PARTS][FOREIGN_NAME]);

#endif
