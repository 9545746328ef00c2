#include "launcher/remote/hosts.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/args/args.h"
#include "common/base/array.h"
#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/base/file.h"
#include "common/net/addr.h"
#include "common/rdzv/machine/rdzv.h"

#define FILE_MAX (1u << 20)
#define WORD_MAX 320

/* Nothing that ssh or a shell would take for something else. */
static bool name_ok(const char *name)
{
    const char *at = strchr(name, '@'), *host = at ? at + 1 : name;
    if (!isalnum((unsigned char)name[0]) && name[0] != '_' && name[0] != ':')
        return false;
    for (const char *p = name; *p; p++)
        if (!isalnum((unsigned char)*p) && !strchr(".-_:%@", *p))
            return false;
    return *host && *host != '-' && !strchr(host, '@') && strlen(name) <= HOSTS_NAME_MAX;
}

static int parse_slots(const char *text, const char *what, int *ret, struct err *e)
{
    int64_t slots;
    TRY(parse_i64(text, what, 1, RDZV_SLOTS_MAX, &slots, e));
    *ret = (int)slots;
    return 0;
}

/* "node", "node:4", "[v6]", "[v6]:4"; a bare IPv6 address has no slots. */
static int parse_word(const char *word, struct host *ret, struct err *e)
{
    char name[WORD_MAX];
    struct host_port at;
    if (word[0] == '[' && !strchr(word, ']'))
        return err_set(e, ERR_USAGE, "host '%s': expected a closing bracket", word);
    const bool split = addr_split(word, strlen(word), &at);
    snprintf(name, sizeof name, "%.*s", split ? (int)at.host_len : 0, word + (word[0] == '['));
    if (!name_ok(name))
        return err_set(e, ERR_USAGE, "host '%.200s': expected HOST, HOST:SLOTS or USER@HOST", word);
    ret->slots = 0;
    if (at.port && parse_slots(at.port, "slots", &ret->slots, e) < 0)
        return err_wrap(e, "host '%.200s'", word);
    strcpy(ret->name, name);
    return 0;
}

static int add(struct hosts *h, const struct host *one, struct err *e)
{
    for (int i = 0; i < h->n; i++) {
        struct host *old = &h->v[i];
        if (strcmp(old->name, one->name) != 0)
            continue;
        old->slots = (old->slots ? old->slots : 1) + (one->slots ? one->slots : 1);
        if (old->slots > RDZV_SLOTS_MAX)
            return err_set(e, ERR_USAGE, "host '%s': expected at most %d slots", one->name, RDZV_SLOTS_MAX);
        return 0;
    }
    if (h->n == HOSTS_MAX)
        return err_set(e, ERR_USAGE, "expected at most %d hosts", HOSTS_MAX);
    if (ARRAY_RESERVE(h->v, h->cap, (size_t)h->n + 1) < 0)
        return err_errno(e, ENOMEM, "hosts");
    h->v[h->n++] = *one;
    return 0;
}

int hosts_add_list(struct hosts *h, const char *list, const char *what, struct err *e)
{
    for (const char *p = list;; p++) {
        char word[WORD_MAX];
        const size_t n = strcspn(p, ",");
        struct host one;
        snprintf(word, sizeof word, "%.*s", (int)(n < sizeof word ? n : sizeof word - 1), p);
        if (parse_word(word, &one, e) < 0 || add(h, &one, e) < 0)
            return err_wrap(e, "%s", what);
        p += n;
        if (!*p)
            return 0;
    }
}

/* What follows the host on its line. */
static int parse_word_of_line(const char *word, struct host *one, struct err *e)
{
    if (strncmp(word, "slots=", 6) == 0)
        return parse_slots(word + 6, "slots", &one->slots, e);
    if (strncmp(word, "max_slots=", 10) == 0 || strncmp(word, "max-slots=", 10) == 0)
        return 0; /* crun never takes more than the slots */
    return err_set(e, ERR_USAGE, "'%.100s': expected slots=N", word);
}

static int add_line(struct hosts *h, char *line, struct err *e)
{
    struct host one;
    char *rest = NULL;
    line[strcspn(line, "#\r\n")] = 0;
    char *word = strtok_r(line, " \t", &rest);
    if (!word)
        return 0;
    TRY(parse_word(word, &one, e));
    while ((word = strtok_r(NULL, " \t", &rest)))
        TRY(parse_word_of_line(word, &one, e));
    return add(h, &one, e);
}

int hosts_add_text(struct hosts *h, const char *text, const char *what, struct err *e)
{
    char *copy = strdup(text), *next = copy;
    int rc = copy ? 0 : err_errno(e, ENOMEM, "%s", what);
    for (int number = 1; rc == 0 && next; number++) {
        char *line = strsep(&next, "\n");
        if (add_line(h, line, e) < 0)
            rc = err_wrap(e, "%s, line %d", what, number);
    }
    free(copy);
    return rc;
}

int hosts_add_file(struct hosts *h, const char *path, struct err *e)
{
    char what[320];
    struct buf text;
    snprintf(what, sizeof what, "--hostfile '%.280s'", path);
    buf_init(&text, FILE_MAX);
    file_at(path);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    int rc = fd < 0 ? -errno : file_read_all(fd, &text);
    if (fd >= 0)
        close(fd);
    file_at(NULL);
    if (rc == -E2BIG)
        rc = err_set(e, ERR_USAGE, "%s: expected at most %u bytes", what, FILE_MAX);
    else if (rc < 0)
        rc = err_set(e, ERR_USAGE, "%s cannot be read: %s", what, strerror(-rc));
    else
        rc = hosts_add_text(h, text.data ? text.data : "", what, e);
    buf_free(&text);
    return rc;
}

void hosts_free(struct hosts *h)
{
    free(h->v);
    *h = (struct hosts){0};
}

const char *host_address(const struct host *h)
{
    const char *at = strchr(h->name, '@');
    return at ? at + 1 : h->name;
}
