/* Converts facts of a machine to JSON and back (facts.h). */
#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>

#include "common/base/err.h"
#include "common/json/json.h"
#include "launcher/tools/doctor/facts.h"

static void add_nics(cJSON *o, const struct facts *f)
{
    cJSON *list = cJSON_AddArrayToObject(o, "nics");
    for (int i = 0; i < f->n_nics; i++) {
        cJSON *one = cJSON_CreateObject();
        cJSON_AddStringToObject(one, "name", f->nics[i].name);
        cJSON_AddBoolToObject(one, "up", f->nics[i].up);
        cJSON_AddBoolToObject(one, "compare", f->nics[i].compare);
        cJSON_AddNumberToObject(one, "mtu", f->nics[i].mtu);
        cJSON_AddItemToArray(list, one);
    }
}

static void add_hcas(cJSON *o, const struct facts *f)
{
    cJSON *list = cJSON_AddArrayToObject(o, "hcas");
    for (int i = 0; i < f->n_hcas; i++) {
        cJSON *one = cJSON_CreateObject();
        cJSON_AddStringToObject(one, "name", f->hcas[i].name);
        cJSON_AddBoolToObject(one, "active", f->hcas[i].active);
        cJSON_AddItemToArray(list, one);
    }
}

cJSON *facts_to_json(const struct facts *f)
{
    struct err e;
    cJSON *o = cJSON_CreateObject();
#define X(name) cJSON_AddStringToObject(o, #name, f->name);
    FACTS_TEXTS(X)
#undef X
#define X(name) cJSON_AddNumberToObject(o, #name, (double)f->name);
    FACTS_NUMBERS(X)
#undef X
    add_nics(o, f);
    add_hcas(o, f);
    if (o && json_clean(o, &e) == 0)
        return o;
    cJSON_Delete(o);
    return NULL;
}

static void take_text(const cJSON *o, const char *name, char *out, size_t cap)
{
    const char *s = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(o, name));
    snprintf(out, cap, "%s", s ? s : "");
    for (char *p = out; *p; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f)
            *p = '?'; /* it will be printed */
}

static int64_t take_number(const cJSON *o, const char *name)
{
    const double v = cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(o, name));
    return isfinite(v) && fabs(v) < 9e15 ? (int64_t)v : -1;
}

static bool take_bool(const cJSON *o, const char *name)
{
    return cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(o, name));
}

void facts_from_json(const cJSON *o, struct facts *ret)
{
    const cJSON *one;
    *ret = (struct facts){0};
#define X(name) take_text(o, #name, ret->name, sizeof ret->name);
    FACTS_TEXTS(X)
#undef X
#define X(name) ret->name = take_number(o, #name);
    FACTS_NUMBERS(X)
#undef X
    cJSON_ArrayForEach(one, cJSON_GetObjectItemCaseSensitive(o, "nics"))
    {
        if (ret->n_nics == FACTS_NICS_MAX)
            break;
        struct facts_nic *nic = &ret->nics[ret->n_nics++];
        take_text(one, "name", nic->name, sizeof nic->name);
        nic->up = take_bool(one, "up");
        nic->compare = take_bool(one, "compare");
        nic->mtu = (int)take_number(one, "mtu");
    }
    cJSON_ArrayForEach(one, cJSON_GetObjectItemCaseSensitive(o, "hcas"))
    {
        if (ret->n_hcas == FACTS_HCAS_MAX)
            break;
        struct facts_hca *hca = &ret->hcas[ret->n_hcas++];
        take_text(one, "name", hca->name, sizeof hca->name);
        hca->active = take_bool(one, "active");
    }
}
