/* Reads --rdzv-conf key by key and notes the keys that torchrun has and crun has not. See rdzv_conf.h. */
#include "launcher/config/rdzv_conf.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "common/args/args.h"
#include "common/args/nearest.h"
#include "common/base/err.h"
#include "common/rdzv/wire/rdzv_wire.h"

#define VALUE_MAX 64

static const struct {
    const char *key;
    size_t at;
    int64_t def;
} times[] = {
#define X(key, def, text) {#key, offsetof(struct rdzv_conf, key##_ms), def},
    RDZV_CONF_TIMES(X)
#undef X
};
#define TIMES (sizeof times / sizeof *times)

static const char *const unused[] = {
#define X(key) #key,
    RDZV_CONF_UNUSED(X)
#undef X
};

/* Each has a function set_KEY(). */
#define OTHERS(X)                                                                                                      \
    X(keep_alive_max_attempt)                                                                                          \
    X(timeout)                                                                                                         \
    X(is_host)                                                                                                         \
    X(port)                                                                                                            \
    X(rank)                                                                                                            \
    X(store_type)                                                                                                      \
    X(allow_unsafe)                                                                                                    \
    X(max_lag)

static int set_time(const char *key, const char *value, int64_t *ret, struct err *e)
{
    double s;
    TRY(parse_seconds(value, key, &s, e));
    if (s < 0.001 || s * 1000 > RDZV_TIME_MAX_MS)
        return err_set(e, ERR_USAGE, "%s: %s is out of range, expected 1ms to 7d", key, value);
    *ret = (int64_t)(s * 1000 + 0.5);
    return 0;
}

/* Of torchrun's words the first n: keys that torchrun does not have take the first two alone. */
enum { OWN_WORDS = 2, ALL_WORDS = 5 };

static int set_flag(const char *key, const char *value, int n, int *ret, struct err *e)
{
    static const char *const words[2][ALL_WORDS] = {{"0", "false", "f", "no", "n"}, {"1", "true", "t", "yes", "y"}};
    for (int v = 0; v < 2; v++)
        for (int i = 0; i < n; i++)
            if (strcasecmp(value, words[v][i]) == 0) {
                *ret = v;
                return 0;
            }
    return err_set(e, ERR_USAGE, "%s: '%s' is neither true nor false, expected 1, true, 0 or false", key, value);
}

static int set_keep_alive_max_attempt(struct rdzv_conf *c, const char *key, const char *value, struct err *e)
{
    return parse_i64(value, key, 1, 1000, &c->keep_alive_max_attempt, e);
}

static int set_timeout(struct rdzv_conf *c, const char *key, const char *value, struct err *e)
{
    c->join_timeout_typed = true;
    return set_time(key, value, &c->join_timeout_ms, e);
}

static int set_is_host(struct rdzv_conf *c, const char *key, const char *value, struct err *e)
{
    return set_flag(key, value, ALL_WORDS, &c->is_host, e);
}

static int set_port(struct rdzv_conf *c, const char *key, const char *value, struct err *e)
{
    return parse_i64(value, key, 1, 65535, &c->port, e);
}

static int set_rank(struct rdzv_conf *c, const char *key, const char *value, struct err *e)
{
    return parse_i64(value, key, 0, 99999, &c->rank, e);
}

static int set_store_type(struct rdzv_conf *c, const char *key, const char *value, struct err *e)
{
    if (strcmp(value, "file") != 0 && strcmp(value, "tcp") != 0)
        return err_set(e, ERR_USAGE, "%s: '%s' is not one of tcp, file", key, value);
    c->store_type_file = value[0] == 'f';
    return 0;
}

static int set_allow_unsafe(struct rdzv_conf *c, const char *key, const char *value, struct err *e)
{
    return set_flag(key, value, OWN_WORDS, &c->allow_unsafe, e);
}

static int set_max_lag(struct rdzv_conf *c, const char *key, const char *value, struct err *e)
{
    return set_time(key, value, &c->max_lag_ms, e);
}

static const struct {
    const char *key;
    int (*set)(struct rdzv_conf *c, const char *key, const char *value, struct err *e);
} others[] = {
#define X(key) {#key, set_##key},
    OTHERS(X)
#undef X
};
#define OTHERS_N (sizeof others / sizeof *others)

/* The first one that is not known. */
static void note_unknown(struct rdzv_conf *c, const char *key)
{
    struct nearest near;
    nearest_begin(&near, key, strlen(key));
    for (size_t i = 0; i < TIMES; i++)
        nearest_try(&near, times[i].key);
    for (size_t i = 0; i < OTHERS_N; i++)
        nearest_try(&near, others[i].key);
    if (c->unknown[0])
        return;
    snprintf(c->unknown, sizeof c->unknown, near.word ? "'%s', did you mean '%s'?" : "'%s'", key, near.word);
}

static int set(struct rdzv_conf *c, const char *key, const char *value, struct err *e)
{
    c->join_timeout_typed = c->join_timeout_typed || strcmp(key, "join_timeout") == 0;
    for (size_t i = 0; i < TIMES; i++)
        if (strcmp(times[i].key, key) == 0)
            return set_time(key, value, (int64_t *)((char *)c + times[i].at), e);
    for (size_t i = 0; i < OTHERS_N; i++)
        if (strcmp(others[i].key, key) == 0)
            return others[i].set(c, key, value, e);
    for (size_t i = 0; i < sizeof unused / sizeof *unused; i++)
        if (strcmp(key, unused[i]) == 0) {
            c->unused[i] = unused[i];
            return 0;
        }
    note_unknown(c, key);
    return 0;
}

static void trim(const char **p, size_t *n)
{
    for (; *n && (**p == ' ' || **p == '\t'); (*p)++)
        --*n;
    while (*n && ((*p)[*n - 1] == ' ' || (*p)[*n - 1] == '\t'))
        --*n;
}

/* Values, and the whole, may stand in single or double quotes, as torchrun's own tests write them. */
static void unquote(const char **p, size_t *n)
{
    if (*n >= 2 && ((*p)[0] == '"' || (*p)[0] == '\'') && (*p)[*n - 1] == (*p)[0]) {
        ++*p;
        *n -= 2;
    }
}

static int set_pair(struct rdzv_conf *c, const char *p, size_t n, struct err *e)
{
    char key[VALUE_MAX], text[VALUE_MAX];
    const char *equals = memchr(p, '=', n);
    const char *value = equals ? equals + 1 : "";
    size_t key_len = equals ? (size_t)(equals - p) : n, len = equals ? (size_t)(p + n - value) : 0;
    trim(&p, &key_len);
    trim(&value, &len);
    unquote(&value, &len);
    const bool is_quoted = memchr(p, '\'', key_len) || memchr(p, '"', key_len); /* and the other quote is missing */
    if (key_len == 0 || len == 0 || is_quoted)
        return err_set(e, ERR_USAGE, "'%.*s': expected key=value", (int)(key_len < 64 ? key_len : 64), p);
    if (key_len >= sizeof key || len >= sizeof text)
        return err_set(e, ERR_USAGE, "'%.63s': expected at most %d characters", p, VALUE_MAX - 1);
    snprintf(key, sizeof key, "%.*s", (int)key_len, p);
    snprintf(text, sizeof text, "%.*s", (int)len, value);
    return set(c, key, text, e);
}

const char *rdzv_conf_pairs(const char *text, size_t *ret_n)
{
    const char *p = text ? text : "";
    *ret_n = strlen(p);
    unquote(&p, ret_n);
    if (*ret_n > 0 && p[*ret_n - 1] == ',')
        --*ret_n;
    return p;
}

int rdzv_conf_parse(const char *text, struct rdzv_conf *ret, struct err *e)
{
    struct rdzv_conf c = {.keep_alive_max_attempt = 3, .is_host = -1, .rank = -1, .allow_unsafe = -1};
    for (size_t i = 0; i < TIMES; i++)
        *(int64_t *)((char *)&c + times[i].at) = times[i].def;
    size_t left;
    const char *p = rdzv_conf_pairs(text, &left);
    while (left > 0) {
        const char *comma = memchr(p, ',', left);
        const size_t n = comma ? (size_t)(comma - p) : left;
        TRY(set_pair(&c, p, n, e));
        p += n + (comma != NULL);
        left -= n + (comma != NULL);
    }
    if (c.keep_alive_interval_ms * c.keep_alive_max_attempt > RDZV_LIVENESS_MAX_MS)
        return err_set(
            e, ERR_USAGE,
            "keep_alive_interval x keep_alive_max_attempt: %g s x %lld is out of range, expected at most 10m",
            (double)c.keep_alive_interval_ms / 1000, (long long)c.keep_alive_max_attempt);
    *ret = c;
    return 0;
}
