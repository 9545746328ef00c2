/* Reads and makes the files that hold secrets; see auth.h. */
#include "common/auth/auth.h"
#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/base/file.h"
#include "common/base/path.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pwd.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#define READ_MS 5000 /* ms within which an inherited descriptor must reach its end */
#define SECRET_BYTES 32

void auth_tokens_free(struct auth_tokens *t)
{
    if (t->v)
        explicit_bzero(t->v, t->n * sizeof *t->v);
    free(t->v);
    *t = (struct auth_tokens){0};
}

const struct auth_token *auth_tokens_find(const struct auth_tokens *t, const char *principal, size_t n)
{
    for (size_t i = 0; i < t->n; i++)
        if (strlen(t->v[i].principal) == n && memcmp(t->v[i].principal, principal, n) == 0)
            return &t->v[i];
    return NULL;
}

/* --- text */

static bool is_principal(const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!((p[i] >= 'a' && p[i] <= 'z') || (p[i] >= 'A' && p[i] <= 'Z') || (p[i] >= '0' && p[i] <= '9') ||
              strchr("._-@", p[i])))
            return false;
    return n > 0 && n <= AUTH_PRINCIPAL_MAX;
}

static bool is_secret(const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (p[i] < '!' || p[i] > '~')
            return false;
    return n >= AUTH_SECRET_MIN && n <= AUTH_SECRET_MAX;
}

static size_t skip_blanks(const char *p, size_t n, size_t at)
{
    while (at < n && (p[at] == ' ' || p[at] == '\t' || p[at] == '\r'))
        at++;
    return at;
}

static size_t skip_word(const char *p, size_t n, size_t at)
{
    while (at < n && p[at] != ' ' && p[at] != '\t' && p[at] != '\r')
        at++;
    return at;
}

/* Parse one line. 1: a token; 0: nothing on this line. Errors contain no character of the secret. */
static int parse_line(const char *p, size_t n, struct auth_token *ret, struct err *e)
{
    size_t name = skip_blanks(p, n, 0), name_end = skip_word(p, n, name);
    size_t secret = skip_blanks(p, n, name_end), secret_end = skip_word(p, n, secret);
    if (name == n || p[name] == '#')
        return 0;
    if (!is_principal(p + name, name_end - name))
        return err_set(e, ERR_USAGE,
                       "expected 'principal secret', the principal of 1 to %d letters, digits, '.', '_', '-' or '@'",
                       AUTH_PRINCIPAL_MAX);
    if (skip_blanks(p, n, secret_end) != n)
        return err_set(e, ERR_USAGE, "more than 'principal secret' on it");
    if (!is_secret(p + secret, secret_end - secret))
        return err_set(
            e, ERR_USAGE,
            "the secret of '%.*s' has %zu characters: expected %d to %d, printable and without blanks (openssl "
            "rand -hex 16 makes one)",
            (int)(name_end - name), p + name, secret_end - secret, AUTH_SECRET_MIN, AUTH_SECRET_MAX);
    memset(ret, 0, sizeof *ret);
    memcpy(ret->principal, p + name, name_end - name);
    memcpy(ret->secret, p + secret, secret_end - secret);
    return 1;
}

static int add_token(struct auth_tokens *t, size_t *cap, const struct auth_token *one, struct err *e)
{
    if (auth_tokens_find(t, one->principal, strlen(one->principal)))
        return err_set(e, ERR_USAGE, "principal '%s' stands there twice", one->principal);
    if (t->n == *cap) {
        size_t more = *cap ? 2 * *cap : 8;
        struct auth_token *v = calloc(more, sizeof *v);
        if (!v)
            return err_set(e, -ENOMEM, "no memory for %zu tokens", more);
        struct auth_tokens old = *t;
        if (old.n)
            memcpy(v, old.v, old.n * sizeof *v);
        *t = (struct auth_tokens){v, old.n};
        auth_tokens_free(&old);
        *cap = more;
    }
    t->v[t->n++] = *one;
    return 0;
}

int auth_tokens_parse(struct auth_tokens *ret, const char *text, size_t n, const char *what, struct err *e)
{
    struct auth_tokens t = {0};
    struct auth_token one;
    size_t cap = 0;
    int rc = 0, line = 0;
    for (size_t at = 0; at < n && rc >= 0;) {
        const char *end = memchr(text + at, '\n', n - at);
        size_t len = end ? (size_t)(end - text) - at : n - at;
        line++;
        rc = parse_line(text + at, len, &one, e);
        if (rc == 1)
            rc = add_token(&t, &cap, &one, e);
        if (rc < 0)
            err_wrap(e, "%s, line %d", what, line);
        at += len + 1;
    }
    explicit_bzero(&one, sizeof one);
    if (rc >= 0 && t.n == 0)
        rc = err_set(e, ERR_USAGE, "%s has no line 'principal secret'", what);
    if (rc < 0) {
        auth_tokens_free(&t);
        return rc;
    }
    *ret = t;
    return 0;
}

/* --- files */

static int read_all(int fd, struct buf *b, const char *what, struct err *e)
{
    int64_t deadline = clock_deadline(READ_MS);
    char part[4096];
    ssize_t n = 1;
    while (n > 0) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if (poll(&p, 1, clock_left(deadline)) == 0)
            return err_set(e, -ETIMEDOUT, "%s did not end within %d s", what, READ_MS / 1000);
        n = read(fd, part, sizeof part);
        if (n < 0 && errno != EINTR && errno != EAGAIN)
            return err_errno(e, errno, "%s cannot be read", what);
        if (n > 0 && buf_add(b, part, (size_t)n) < 0)
            return err_set(e, ERR_USAGE, "%s is longer than %d bytes", what, AUTH_TOKENS_MAX_BYTES);
        n = n < 0 ? 1 : n;
    }
    explicit_bzero(part, sizeof part);
    return 0;
}

static bool is_our_group(gid_t group)
{
    gid_t groups[256];
    const int n = getgroups((int)(sizeof groups / sizeof *groups), groups);
    for (int i = 0; i < n; i++)
        if (groups[i] == group)
            return true;
    return group == getegid();
}

/* Is this a Secret of Kubernetes? root owns the file, and a process of another user reads it through its group. */
static bool is_by_group(const struct stat *st)
{
    const bool is_roots_own = geteuid() == 0 && st->st_gid == 0;
    return (st->st_mode & 077) == 040 && st->st_uid == 0 && !is_roots_own && is_our_group(st->st_gid);
}

/* Check that nobody else may read the file: else it is no secret. */
static int check_mode(int fd, const char *what, const char *path, struct err *e)
{
    struct stat st;
    if (fstat(fd, &st) < 0)
        return err_errno(e, errno, "%s cannot be looked at", what);
    if (st.st_mode & 077 && !is_by_group(&st))
        return err_set(e, ERR_USAGE,
                       "%s may be used by others (mode %04o): expected 0600 or less (chmod 600 '%s'), or root's, 0440, "
                       "and a group of ours (a Secret)",
                       what, (unsigned)st.st_mode & 07777, path);
    if (st.st_uid != geteuid() && st.st_uid != 0 && geteuid() != 0)
        return err_set(e, ERR_USAGE, "%s belongs to uid %u: expected our own, %u", what, (unsigned)st.st_uid,
                       (unsigned)geteuid());
    return 0;
}

static bool is_descriptor(const char *path)
{
    return strncmp(path, "fd:", 3) == 0;
}

static int open_tokens(const char *path, const char *what, bool *ret_inherited, struct err *e)
{
    *ret_inherited = is_descriptor(path);
    if (*ret_inherited) {
        char *end;
        long n = strtol(path + 3, &end, 10);
        if (end == path + 3 || *end || n < 0 || n > INT32_MAX)
            return err_set(e, ERR_USAGE,
                           "token file '%s': expected fd: and the number of an open descriptor, such as fd:3", path);
        return fcntl((int)n, F_GETFD) < 0 ? err_errno(e, errno, "%s cannot be read", what) : (int)n;
    }
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* O_NONBLOCK: a FIFO must not block us */
    return fd < 0 ? err_errno(e, errno, "%s cannot be read", what) : fd;
}

int auth_tokens_read(struct auth_tokens *ret, const char *path, struct err *e)
{
    char what[320];
    struct buf b;
    bool inherited;
    snprintf(what, sizeof what, "token file '%.280s'", path);
    file_at(path);
    int fd = open_tokens(path, what, &inherited, e);
    buf_init(&b, AUTH_TOKENS_MAX_BYTES);
    int rc = inherited || fd < 0 ? 0 : check_mode(fd, what, path, e);
    if (rc == 0 && fd >= 0)
        rc = read_all(fd, &b, what, e);
    if (fd >= 0)
        close(fd);
    file_at(NULL);
    if (fd < 0)
        return fd;
    if (rc == 0)
        rc = auth_tokens_parse(ret, b.data ? b.data : "", b.len, what, e);
    if (b.data)
        explicit_bzero(b.data, b.cap);
    buf_free(&b);
    return rc;
}

int auth_tokens_reread(struct auth_tokens *t, const char *path, struct err *e)
{
    struct auth_tokens fresh = {0};
    if (is_descriptor(path))
        return err_set(e, ERR_USAGE, "token file '%s': a descriptor can be read only once", path);
    TRY(auth_tokens_read(&fresh, path, e));
    auth_tokens_free(t);
    *t = fresh;
    return 0;
}

/* --- one's own */

static int draw(struct auth_token *t, bool by_name, struct err *e)
{
    memset(t, 0, sizeof *t);
    snprintf(t->principal, sizeof t->principal, "uid%u", (unsigned)geteuid());
    struct passwd pw, *found = NULL;
    char strings[4096];
    if (by_name && getpwuid_r(geteuid(), &pw, strings, sizeof strings, &found) == 0 && found &&
        is_principal(pw.pw_name, strlen(pw.pw_name)))
        snprintf(t->principal, sizeof t->principal, "%s", pw.pw_name);
    return auth_random_hex(t->secret, SECRET_BYTES, e);
}

static int write_token(const char *path, const struct auth_token *t, struct err *e)
{
    char text[AUTH_PRINCIPAL_MAX + AUTH_SECRET_MAX + 3];
    int n = snprintf(text, sizeof text, "%s %s\n", t->principal, t->secret);
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return err_errno(e, errno, "'%s' cannot be made", path);
    int rc = write(fd, text, (size_t)n) == n && fsync(fd) == 0 ? 0 : errno ? -errno : -EIO;
    explicit_bzero(text, sizeof text);
    close(fd);
    return rc < 0 ? err_errno(e, -rc, "'%s' cannot be written", path) : 0;
}

/* Make the token file: write a temporary file and link it to its name if that is free. So nobody sees half a file,
 * and if two processes do it at once, one wins. */
static int make_token(const char *path, struct err *e)
{
    struct auth_token t;
    char aside[4096 + 32], mark[17];
    TRY(auth_random_hex(mark, 8, e));
    snprintf(aside, sizeof aside, "%s.%s.tmp", path, mark);
    int rc = draw(&t, true, e);
    if (rc == 0)
        rc = write_token(aside, &t, e);
    explicit_bzero(&t, sizeof t);
    if (rc == 0 && link(aside, path) < 0 && errno != EEXIST &&
        (renameat2(AT_FDCWD, aside, AT_FDCWD, path, RENAME_NOREPLACE) < 0 && errno != EEXIST))
        rc = err_errno(e, errno, "'%s' cannot be made", path);
    unlink(aside);
    return rc;
}

static int home_path(char *ret, size_t cap, struct err *e)
{
    const char *home = getenv("HOME");
    struct stat st;
    if (!home || home[0] != '/' || stat(home, &st) < 0 || snprintf(ret, cap, "%s/.config/crun", home) >= (int)cap)
        return err_set(e, -ENOENT, "there is no home folder");
    TRY(path_make_dirs(ret, e));
    size_t n = strlen(ret);
    return snprintf(ret + n, cap - n, "/token") >= (int)(cap - n) ? err_set(e, -ENAMETOOLONG, "HOME is too long") : 0;
}

static bool is_or_can_be_made(const char *path, struct err *why)
{
    file_at(path);
    const bool is = access(path, F_OK) == 0 || make_token(path, why) == 0;
    file_at(NULL);
    return is;
}

/* Texts about crun print these. */
static bool is_placeholder(const char *secret)
{
    static const char *const known[] = {"SECRET", "16-CHARACTERS-OR-MORE", "a-secret-of-16-characters-or-more"};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcasecmp(secret, known[i]) == 0)
            return true;
    return false;
}

/* Parse CRUN_TOKEN: "SECRET" or "PRINCIPAL SECRET". The first form suits nodes on which the user has different
 * names. */
static int read_variable(struct auth_tokens *ret, const char *text, struct err *e)
{
    struct buf line;
    const size_t n = strlen(text), word = skip_word(text, n, skip_blanks(text, n, 0));
    const bool is_bare = skip_blanks(text, n, word) == n;
    buf_init(&line, 4096);
    int rc = buf_printf(&line, "%s%s", is_bare ? AUTH_PRINCIPAL " " : "", text);
    rc = rc < 0 ? err_set(e, ERR_USAGE, AUTH_VARIABLE " is longer than 4096 bytes")
                : auth_tokens_parse(ret, line.data, line.len, AUTH_VARIABLE, e);
    const bool placeholder = rc == 0 && is_placeholder(ret->v[0].secret);
    if (placeholder)
        auth_tokens_free(ret);
    if (placeholder || is_placeholder(text)) /* the shortest is too short for a secret, too */
        rc = err_set(e, ERR_USAGE,
                     AUTH_VARIABLE
                     " holds the words that stand for a secret, which everybody knows: expected a secret of "
                     "your own, the same on all nodes (openssl rand -hex 16 makes one)");
    if (line.data)
        explicit_bzero(line.data, line.cap);
    buf_free(&line);
    return rc;
}

int auth_tokens_own(struct auth_tokens *ret, const char *file, enum auth_origin *ret_origin, struct err *e)
{
    const char *variable = getenv(AUTH_VARIABLE);
    char path[4096];
    struct err why;
    *ret_origin = AUTH_FROM_FILE;
    if (file)
        return auth_tokens_read(ret, file, e);
    *ret_origin = AUTH_FROM_VARIABLE;
    if (variable && *variable)
        return read_variable(ret, variable, e);
    *ret_origin = AUTH_FROM_HOME;
    if (home_path(path, sizeof path, &why) == 0 && is_or_can_be_made(path, &why))
        return auth_tokens_read(ret, path, e);
    *ret_origin = AUTH_FROM_DRAWN;
    struct auth_token *t = calloc(1, sizeof *t);
    if (!t)
        return err_set(e, -ENOMEM, "no memory for a token");
    int rc = draw(t, false, e);
    *ret = (struct auth_tokens){t, 1};
    if (rc < 0)
        auth_tokens_free(ret);
    return rc;
}
