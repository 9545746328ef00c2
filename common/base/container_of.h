/* Get from a member of a struct to the struct around it. */
#ifndef CRUN_COMMON_CONTAINER_OF_H
#define CRUN_COMMON_CONTAINER_OF_H

#include <stddef.h>

/* at: pointer to the member. */
#define container_of(at, type, member) ((type *)(void *)((char *)(at)-offsetof(type, member)))

#endif
