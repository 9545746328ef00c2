/* Choices (common/base/choice.h) in a manifest: by their names, so that lists of them may change. Older checkpoints
 * hold numbers, which mean what they meant then. */
#ifndef CRUN_WORKER_MANIFEST_CHOICE_H
#define CRUN_WORKER_MANIFEST_CHOICE_H

#include <cjson/cJSON.h>

/* What member "input", "net_style" or "kind" of an object says; NULL: it is not there, or no sense can be made of it.
 * Lives as long as the object. */
const char *meta_choice(const cJSON *object, const char *member);

/* The same as an index into names[n]; otherwise: where it is none of them. */
int meta_choice_id(const cJSON *object, const char *member, const char *const *names, int n, int otherwise);

#endif
