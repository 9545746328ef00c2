#include "tests/worker/device/cuda/properties.h"

#include <stdio.h>
#include <stdlib.h>

#include <cjson/cJSON.h>

#include "common/base/err.h"
#include "common/json/json.h"

char *properties_read(const char *path)
{
    struct err e = {0};
    cJSON *o;
    if (json_read_file(path, 1 << 16, &o, &e) < 0) {
        fprintf(stderr, "%s\n", e.text);
        exit(2);
    }
    char *text = cJSON_PrintUnformatted(o);
    cJSON_Delete(o);
    return text;
}
