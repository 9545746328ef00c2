/* Writes and reads the names of classes in a manifest. */
#include "worker/manifest/class_names.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/base/utf8.h"
#include "common/json/json.h"

#define REPLACED "\xef\xbf\xbd" /* U+FFFD */

/* Of a name that a line of the text cannot hold: its bytes in hex, else NULL. malloc'ed. */
static char *bytes_of_name(const char *name)
{
    const char *at = name;
    for (size_t n; *at && *at != '\n' && (n = utf8_len(at)) > 0;)
        at += n;
    char *hex = *at ? malloc(2 * strlen(name) + 1) : NULL;
    for (size_t i = 0; hex && name[i]; i++)
        snprintf(hex + 2 * i, 3, "%02x", (unsigned char)name[i]);
    return hex;
}

static int add_line(struct buf *text, const char *name)
{
    int rc = 0;
    for (size_t n; rc == 0 && *name; name += n) {
        n = strcspn(name, "\n");
        rc = buf_add(text, name, n);
        if (rc == 0 && name[n] == '\n') {
            rc = buf_addstr(text, REPLACED);
            n++;
        }
    }
    return rc == 0 ? buf_addstr(text, "\n") : rc;
}

static int add_text(cJSON *meta, char *const *names, int n)
{
    struct buf text;
    buf_init(&text, SIZE_MAX / 2);
    int rc = buf_addstr(&text, "");
    for (int i = 0; rc == 0 && i < n; i++)
        rc = add_line(&text, names[i]);
    cJSON *item = rc == 0 ? cJSON_AddStringToObject(meta, "classes", text.data) : NULL;
    buf_free(&text);
    return item ? json_clean(item, NULL) : -ENOMEM;
}

static int add_bytes(cJSON *meta, char *const *names, int n)
{
    cJSON *all = cJSON_CreateObject();
    char number[16];
    int rc = all ? 0 : -ENOMEM;
    for (int i = 0; rc == 0 && i < n; i++) {
        char *hex = bytes_of_name(names[i]);
        snprintf(number, sizeof number, "%d", i);
        if (hex && !cJSON_AddStringToObject(all, number, hex))
            rc = -ENOMEM;
        free(hex);
    }
    if (rc == 0 && all->child && cJSON_AddItemToObject(meta, "class_bytes", all))
        return 0;
    cJSON_Delete(all);
    return rc;
}

int class_names_add(cJSON *meta, char *const *names, int n)
{
    const int rc = add_bytes(meta, names, n);
    return rc == 0 ? add_text(meta, names, n) : rc;
}

struct class_names class_names_of(const cJSON *meta)
{
    const cJSON *all = cJSON_GetObjectItemCaseSensitive(meta, "classes");
    return (struct class_names){.at = cJSON_GetStringValue(all), .item = all ? all->child : NULL};
}

bool class_names_next(struct class_names *c)
{
    if (c->at) {
        c->name = c->at;
        c->length = strcspn(c->at, "\n");
        c->at += c->length + (c->at[c->length] == '\n');
        return *c->name;
    }
    if (!c->item)
        return false;
    const char *name = cJSON_GetStringValue(c->item);
    c->name = name ? name : "?";
    c->length = strlen(c->name);
    c->item = c->item->next;
    return true;
}

/* bytes: the first of "class_bytes" that is not behind i; they are in the order of the classes. */
static bool is_same(const struct class_names *c, int i, const char *name, const cJSON **bytes)
{
    char number[16];
    snprintf(number, sizeof number, "%d", i);
    if (!*bytes || strcmp((*bytes)->string, number) != 0)
        return strncmp(name, c->name, c->length) == 0 && name[c->length] == '\0';
    const char *stored = cJSON_GetStringValue(*bytes);
    char *hex = bytes_of_name(name);
    const bool same = hex && stored && strcmp(hex, stored) == 0;
    free(hex);
    *bytes = (*bytes)->next;
    return same;
}

int class_names_check(const cJSON *meta, char *const *names, int n, struct err *e)
{
    const cJSON *all = cJSON_GetObjectItemCaseSensitive(meta, "class_bytes"), *bytes = all ? all->child : NULL;
    int stored = 0;
    for (struct class_names c = class_names_of(meta); class_names_next(&c);)
        stored++;
    if (stored != n)
        return err_set(e, ERR_MISMATCH, "the checkpoint was trained on %d classes, the training set has %d", stored, n);
    int i = 0;
    for (struct class_names c = class_names_of(meta); class_names_next(&c); i++)
        if (!is_same(&c, i, names[i], &bytes))
            return err_set(e, ERR_MISMATCH, "class %d is '%.*s' in the checkpoint and '%s' in the training set", i,
                           (int)c.length, c.name, names[i]);
    return 0;
}
