/* Writes a program's configuration as JSON, for logs (args.h). */
#include <cjson/cJSON.h>
#include <string.h>

#include "common/args/args_internal.h"

static cJSON *choice(const struct arg_spec *s, int value)
{
    const char *cursor = s->choices, *item;
    char text[64];
    for (size_t n; (n = args_next_item(&cursor, '|', &item)) > 0; value--)
        if (value == 0 && n < sizeof text) {
            memcpy(text, item, n);
            text[n] = '\0';
            return cJSON_CreateString(text);
        }
    return cJSON_CreateNull();
}

static cJSON *custom(const struct arg_spec *s, const void *field)
{
    char text[ARG_PRINT_MAX];
    s->print(field, text, sizeof text);
    return text[0] ? cJSON_CreateString(text) : cJSON_CreateNull();
}

static cJSON *value(const struct arg_spec *s, const void *config)
{
    const void *field = (const char *)config + s->at;
    switch (s->type) {
    case ARG_FLAG:
        return cJSON_CreateBool(*(const bool *)field);
    case ARG_INT:
        return cJSON_CreateNumber((double)*(const int64_t *)field);
    case ARG_REAL:
    case ARG_SECONDS:
        return cJSON_CreateNumber(*(const double *)field);
    case ARG_STRING:
        return *(const char *const *)field ? cJSON_CreateString(*(const char *const *)field) : cJSON_CreateNull();
    case ARG_CHOICE:
        return choice(s, *(const int *)field);
    default: /* ARG_CUSTOM: only its owner can interpret the field */
        return s->print ? custom(s, field) : NULL;
    }
}

void args_json(const struct arg_program *p, const void *config, struct cJSON *out)
{
    for (const struct arg_spec *s = p->specs; s->type != ARG_END_; s++) {
        cJSON *v = s->type == ARG_HEADING ? NULL : value(s, config);
        if (v)
            cJSON_AddItemToObject(out, s->name, v);
    }
}
