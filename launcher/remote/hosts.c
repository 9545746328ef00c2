/* Parses the hosts of -H and --hostfile (hosts.h). */
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

/* Does the name contain only characters that neither ssh nor a shell interprets? */
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

static int parse_slots(const char *text, const char *what, int least, int *ret, struct err *e)
{
    int64_t slots;
    TRY(parse_i64(text, what, least, RDZV_SLOTS_MAX, &slots, e));
    *ret = (int)slots;
    return 0;
}

/* Remove the interface from MPICH's "node:4:eth0": crun finds the one that leads to the others. */
static void cut_interface(char *word)
{
    uint8_t ip[ADDR_BYTES];
    char *slots = strchr(word, ':'), *interface = slots ? strchr(slots + 1, ':') : NULL;
    const bool is_mpich = interface && strspn(slots + 1, "0123456789") == (size_t)(interface - slots - 1) &&
                          interface > slots + 1 && isalpha((unsigned char)interface[1]) && !strchr(interface + 1, ':');
    if (is_mpich && !addr_read(word, ip))
        *interface = 0;
}

/* Parse "node", "node:4", "[v6]", "[v6]:4"; a bare IPv6 address has no slots. */
static int parse_word(const char *typed, struct host *ret, struct err *e)
{
    char name[WORD_MAX], word[WORD_MAX];
    uint8_t ip[ADDR_BYTES];
    struct host_port at;
    snprintf(word, sizeof word, "%s", typed);
    cut_interface(word);
    if (word[0] == '[' && !strchr(word, ']'))
        return err_set(e, ERR_USAGE, "host '%s': expected a closing bracket", word);
    const bool split = addr_split(word, strlen(word), &at);
    snprintf(name, sizeof name, "%.*s", split ? (int)at.host_len : 0, word + (word[0] == '['));
    const char *host = strchr(name, '@') ? strchr(name, '@') + 1 : name;
    if (!name_ok(name) || (strchr(name, ':') && !addr_read(host, ip)))
        return err_set(e, ERR_USAGE, "host '%.200s': expected HOST, HOST:SLOTS or USER@HOST", word);
    ret->slots = 0;
    if (at.port && parse_slots(at.port, "slots", 1, &ret->slots, e) < 0)
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

/* "slots = 2" is "slots=2", and "node : 2" is "node:2". */
static void close_up(char *line)
{
    char *to = line;
    for (const char *p = line; *p; p++) {
        const char *next = p + strspn(p, " \t");
        const bool is_beside = next > p && (*next == '=' || *next == ':' || (to > line && strchr("=:", to[-1])));
        if (is_beside)
            p = next - 1;
        else
            *to++ = *p;
    }
    *to = 0;
}

int hosts_add_list(struct hosts *h, const char *list, const char *what, struct err *e)
{
    for (const char *p = list;; p++) {
        char word[WORD_MAX];
        p += strspn(p, " \t");
        const size_t n = strcspn(p, ",");
        size_t len = n < sizeof word ? n : sizeof word - 1;
        struct host one;
        while (len && isblank((unsigned char)p[len - 1]))
            len--;
        snprintf(word, sizeof word, "%.*s", (int)len, p);
        close_up(word);
        if (parse_word(word, &one, e) < 0 || add(h, &one, e) < 0)
            return err_wrap(e, "%s", what);
        p += n;
        if (!*p)
            return 0;
    }
}

static int take_user(const char *user, struct host *one, struct err *e)
{
    char name[WORD_MAX];
    if (strchr(one->name, '@') || snprintf(name, sizeof name, "%s@%s", user, one->name) > HOSTS_NAME_MAX ||
        !name_ok(name))
        return err_set(e, ERR_USAGE, "user=%.100s: expected the name of a user, once", user);
    strcpy(one->name, name);
    return 0;
}

/* Parse KEY=VALUE after a host, as Open MPI, Torque, DeepSpeed and MPICH write them. Only the number of workers is
 * used: crun never takes more than the slots, finds the interface itself, and binds with --numa-binding. */
static int parse_word_of_line(struct hosts *h, const char *word, struct host *one, bool *ret_none, struct err *e)
{
    static const char *const slots[] = {"slots", "np", "cpu", "count"};
    static const char *const passed[] = {"max_slots", "max-slots", "slots_max", "max",
                                         "ifname",    "binding",   "sockets",   "gpus"};
    const size_t n = strcspn(word, "=");
    const char *value = word + n + (word[n] == '=');
    for (size_t i = 0; word[n] && i < sizeof slots / sizeof *slots; i++)
        if (strlen(slots[i]) == n && memcmp(word, slots[i], n) == 0) {
            TRY(parse_slots(value, slots[i], 0, &one->slots, e));
            *ret_none = one->slots == 0;
            return 0;
        }
    for (size_t i = 0; word[n] && i < sizeof passed / sizeof *passed; i++)
        if (strlen(passed[i]) == n && memcmp(word, passed[i], n) == 0) {
            h->unused = passed[i];
            return 0;
        }
    if (strncmp(word, "user=", 5) == 0 || strncmp(word, "username=", 9) == 0)
        return take_user(value, one, e);
    return err_set(e, ERR_USAGE, "'%.100s': expected slots=N", word);
}

/* Add one line. Open MPI's slots=0 excludes the host. */
static int add_line(struct hosts *h, char *line, struct err *e)
{
    struct host one;
    char *rest = NULL;
    bool none = false;
    line[strcspn(line, "#\r\n")] = 0;
    close_up(line);
    char *word = strtok_r(line, " \t", &rest);
    if (!word)
        return 0;
    TRY(parse_word(word, &one, e));
    word = strtok_r(NULL, " \t", &rest);
    if (word && isdigit((unsigned char)*word)) { /* Grid Engine's PE_HOSTFILE: host, slots, queue, processors */
        TRY(parse_slots(word, "slots", 0, &one.slots, e));
        return one.slots ? add(h, &one, e) : 0;
    }
    for (; word; word = strtok_r(NULL, " \t", &rest))
        TRY(parse_word_of_line(h, word, &one, &none, e));
    return none ? 0 : add(h, &one, e);
}

int hosts_add_text(struct hosts *h, const char *text, const char *what, struct err *e)
{
    static const char byte_order_mark[] = "\xef\xbb\xbf"; /* editors on Windows put it in front */
    const size_t mark = strncmp(text, byte_order_mark, 3) == 0 ? 3 : 0;
    char *copy = strdup(text + mark), *next = copy;
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
