/* Writes and reads choices in a manifest by their names. */
#include "worker/manifest/manifest_choice.h"

#include <stddef.h>
#include <string.h>

enum { OLD_MOST = 4 };

/* What the numbers of older checkpoints mean: these lists do not change any more. */
static const struct {
    const char *member, *names[OLD_MOST];
} old[] = {{"input", {"torch", "caffe2", "plain", "cifar"}},
           {"net_style", {"torch", "caffe2"}},
           {"kind", {"global", "distributed", "sharded"}}};

const char *meta_choice(const cJSON *object, const char *member)
{
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(object, member);
    if (cJSON_IsString(v))
        return v->valuestring;
    for (size_t i = 0; i < sizeof old / sizeof *old && cJSON_IsNumber(v); i++)
        if (strcmp(old[i].member, member) == 0)
            return v->valueint >= 0 && v->valueint < OLD_MOST ? old[i].names[v->valueint] : NULL;
    return NULL;
}

int meta_choice_id(const cJSON *object, const char *member, const char *const *names, int n, int otherwise)
{
    const char *name = meta_choice(object, member);
    for (int i = 0; i < n && name; i++)
        if (strcmp(names[i], name) == 0)
            return i;
    return otherwise;
}
