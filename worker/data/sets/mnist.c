/* MNIST's IDX files, as they are or as gzip: magic 0x0803 (pictures) or 0x0801 (labels), then big-endian sizes, then
 * bytes (http://yann.lecun.com/exdb/mnist). Fashion-MNIST and the like have the same form.
 *
 * Where they lie: in the folder itself, or below it as torchvision leaves them (MNIST/raw, FashionMNIST/raw; if there
 * are several, one has to be given). Their names: as LeCun chose them, as Kaggle and 7-zip do (a dot instead of the
 * second hyphen, or in its newest archive each file in a folder of its name), or as EMNIST does, whose six sets are
 * told apart by what stands in front: emnist-letters-train-images-idx3-ubyte. The folder of several such is given with
 * the name of one, DIR/emnist-letters. EMNIST's classes are those of its mapping file, or are known without it. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "common/base/err.h"
#include "common/base/file.h"
#include "worker/data/image/image.h"
#include "worker/data/sets/raw_set.h"

#define CLASSES 10
#define EMNIST_CLASSES 62
#define PICTURES_MAX 100000000u

static const char *const parts[2][2] = {{"train-images", "train-labels"}, {"test-images", "test-labels"}};
static const char *const roots[] = {"MNIST", "FashionMNIST", "KMNIST", "EMNIST"}; /* torchvision's, with raw/ in them */
#define SET_NAMES 120
static const char *const emnist_sets[] = {"balanced", "byclass", "bymerge", "digits", "letters", "mnist"};
#define EMNIST_SETS (int)(sizeof emnist_sets / sizeof *emnist_sets)

/* The set at `path`: its files are dir/<prefix>train-images-idx3-ubyte and so on. */
struct place {
    char dir[PATH_MAX - 100];
    char prefix[32]; /* of EMNIST: "emnist-letters-"; else "" */
};

/* Kaggle's archive has folders of these names, too. */
static bool is_file(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && !S_ISDIR(st.st_mode);
}

/* DIR/name becomes DIR/name/name; false: it is too long. */
static bool nest(char path[PATH_MAX])
{
    char name[128];
    const char *slash = strrchr(path, '/');
    return slash && snprintf(name, sizeof name, "%s", slash) < (int)sizeof name &&
           strlen(path) + strlen(name) < PATH_MAX && strcat(path, name);
}

/* The file of pictures or labels. ret: where it is; if there is none, where it is expected. */
static bool find_file(const struct place *p, bool testing, bool labels, char ret[PATH_MAX])
{
    static const char *const forms[] = {"%s/%s%s-idx%d-ubyte", "%s/%s%s.idx%d-ubyte", "%s/%s%s-idx%d-ubyte.gz",
                                        "%s/%s%s.idx%d-ubyte.gz"};
    const char *part = parts[testing][labels];
    if (testing && !p->prefix[0]) /* MNIST calls it that after the ten thousand pictures it has */
        part = labels ? "t10k-labels" : "t10k-images";
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        const int n = snprintf(ret, PATH_MAX, forms[i], p->dir, p->prefix, part, labels ? 1 : 3);
        if (is_file(ret))
            return true;
        if (n < PATH_MAX && nest(ret) && is_file(ret))
            return true;
    }
    snprintf(ret, PATH_MAX, forms[0], p->dir, p->prefix, part, labels ? 1 : 3);
    return false;
}

static bool has_pictures(const struct place *p)
{
    char file[PATH_MAX];
    return find_file(p, false, false, file) || find_file(p, true, false, file);
}

/* "balanced, letters" of the sets of EMNIST in p->dir; their number. p->prefix: that of the last one. */
static int find_emnist(struct place *p, char *names, size_t cap)
{
    int found = 0;
    size_t at = 0;
    char last[sizeof p->prefix] = "";
    for (int i = 0; i < EMNIST_SETS; i++) {
        snprintf(p->prefix, sizeof p->prefix, "emnist-%s-", emnist_sets[i]);
        if (!has_pictures(p))
            continue;
        if (at < cap)
            at += (size_t)snprintf(names + at, cap - at, "%s%s", found ? ", " : "", emnist_sets[i]);
        strcpy(last, p->prefix);
        found++;
    }
    strcpy(p->prefix, last);
    return found;
}

/* DIR/emnist-letters: no file of that name, but the beginning of one. */
static bool is_prefix(const char *path, struct place *p)
{
    const char *name = strrchr(path, '/');
    for (int i = 0; i < EMNIST_SETS; i++) {
        snprintf(p->prefix, sizeof p->prefix, "emnist-%s", emnist_sets[i]);
        if (strcmp(name ? name + 1 : path, p->prefix) != 0)
            continue;
        strcat(p->prefix, "-");
        return snprintf(p->dir, sizeof p->dir, "%.*s", name ? (int)(name - path) : 1, name ? path : ".") <
                   (int)sizeof p->dir &&
               has_pictures(p);
    }
    return false;
}

/* The number of sets in path/more. */
static int find_in(const char *path, const char *more, struct place *p, char *names, size_t cap)
{
    p->prefix[0] = names[0] = '\0';
    if (snprintf(p->dir, sizeof p->dir, "%s%s", path, more) >= (int)sizeof p->dir)
        return 0;
    return has_pictures(p) ? 1 : find_emnist(p, names, cap);
}

/* The number of sets at `path`: of several, `names`. */
static int find_sets(const char *path, struct place *p, char *names, size_t cap)
{
    struct place one;
    char more[32], here[SET_NAMES], several[SET_NAMES] = "";
    size_t at = 0;
    int found = 0, n = find_in(path, "", p, names, cap);
    n = n ? n : find_in(path, "/raw", p, names, cap);
    if (n)
        return n;
    for (size_t i = 0; i < sizeof roots / sizeof *roots; i++) {
        snprintf(more, sizeof more, "/%s/raw", roots[i]);
        if ((n = find_in(path, more, &one, here, sizeof here)) == 0)
            continue;
        at += (size_t)snprintf(several + at, sizeof several - at, "%s%s", found ? ", " : "", roots[i]);
        *p = one;
        snprintf(names, cap, "%s", found ? several : here);
        found += n;
    }
    return found ? found : is_prefix(path, p) ? 1 : 0;
}

bool dataset_is_mnist(const char *path)
{
    char names[SET_NAMES];
    struct place p;
    return find_sets(path, &p, names, sizeof names) > 0;
}

static int read_exactly(gzFile f, const char *path, void *dst, size_t n, struct err *e)
{
    for (size_t at = 0; at < n;) {
        const unsigned want = n - at < INT_MAX / 2 ? (unsigned)(n - at) : INT_MAX / 2;
        const int got = gzread(f, (char *)dst + at, want);
        if (got <= 0) {
            int code;
            const char *why = gzerror(f, &code);
            return err_set(e, ERR_DATA, "'%s' is cut short or damaged%s%s", path, code ? ": " : "", code ? why : "");
        }
        at += (size_t)got;
    }
    return 0;
}

static int get_u32(gzFile f, const char *path, uint32_t *ret, struct err *e)
{
    uint8_t b[4];
    TRY(read_exactly(f, path, b, sizeof b, e));
    *ret = (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | b[3];
    return 0;
}

/* The header: magic 0x08 and the number of sizes, then the sizes. */
static int get_sizes(gzFile f, const char *path, int dims, uint32_t *sizes, struct err *e)
{
    uint32_t magic;
    TRY(get_u32(f, path, &magic, e));
    if (magic != (0x800u | (unsigned)dims))
        return err_set(e, ERR_DATA, "'%s' is no IDX file of bytes in %d dimensions (it begins with %08x)", path, dims,
                       magic);
    for (int i = 0; i < dims; i++)
        TRY(get_u32(f, path, &sizes[i], e));
    return sizes[0] <= PICTURES_MAX ? 0 : err_set(e, ERR_DATA, "'%s' claims %u entries", path, sizes[0]);
}

#define DEFLATE_MAX 1032u /* bytes that one byte can become */

/* Before memory is taken: can the file hold as much? */
static int check_bytes(gzFile f, const char *path, uint64_t n, struct err *e)
{
    struct stat st;
    if (stat(path, &st) != 0)
        return err_errno(e, errno, "cannot read '%s'", path);
    const uint64_t bytes = (uint64_t)st.st_size;
    if (n <= (gzdirect(f) ? bytes : bytes * DEFLATE_MAX))
        return 0;
    return err_set(e, ERR_DATA, "'%s' is cut short or damaged: it claims %ju bytes of pictures and has %ju", path,
                   (uintmax_t)n, (uintmax_t)bytes);
}

static int get_pictures(struct raw_set *r, gzFile f, const char *path, uint32_t *n, struct err *e)
{
    uint32_t sizes[3];
    TRY(get_sizes(f, path, 3, sizes, e));
    if (sizes[1] < 1 || sizes[2] < 1 || sizes[1] > 4096 || sizes[2] > 4096)
        return err_set(e, ERR_DATA, "'%s' holds pictures of %u x %u", path, sizes[2], sizes[1]);
    r->h = (int)sizes[1];
    r->w = (int)sizes[2];
    r->c = 1;
    *n = sizes[0];
    TRY(check_bytes(f, path, (uint64_t)*n * sizes[1] * sizes[2], e));
    TRY(raw_set_reserve(r, *n, e));
    return read_exactly(f, path, r->px, (size_t)*n * sizes[1] * sizes[2], e);
}

static int get_labels(struct raw_set *r, gzFile f, const char *path, uint32_t n, struct err *e)
{
    uint32_t count;
    TRY(get_sizes(f, path, 1, &count, e));
    if (count != n)
        return err_set(e, ERR_DATA, "'%s' holds %u labels for %u pictures", path, count, n);
    return read_exactly(f, path, r->labels, n, e);
}

static int load_part(struct raw_set *r, const struct place *p, const struct dataset_options *o, struct err *e)
{
    char path[PATH_MAX];
    uint32_t n = 0;
    for (int labels = 0; labels < 2; labels++) {
        if (!find_file(p, o->testing, labels, path))
            return err_set(e, ERR_DATA, "'%s' (or .gz) does not exist", path);
        const int fd = file_open_regular(path, ERR_DATA, e);
        if (fd < 0)
            return fd;
        gzFile f = gzdopen(fd, "rb");
        if (!f) {
            close(fd);
            return err_errno(e, ENOMEM, "cannot read '%s'", path);
        }
        gzbuffer(f, 1u << 17);
        int rc = labels ? get_labels(r, f, path, n, e) : get_pictures(r, f, path, &n, e);
        gzclose(f);
        TRY(rc);
    }
    r->base.n = n;
    return 0;
}

/* EMNIST's classes: lines of a label and the codes of its characters, "10 65" or "1 65 97". */
struct mapping {
    char names[EMNIST_CLASSES][16];
    char *list[EMNIST_CLASSES];
    int classes;
};

/* As the mapping files have it, which torchvision does not keep. */
static int known_mapping(const struct place *p, struct mapping *m)
{
    static const char digits[] = "0123456789", upper[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZ",
                      lower[] = "abcdefghijklmnopqrstuvwxyz",
                      apart[] = "abdefghnqrt"; /* lower-case letters that are not merged with the upper-case ones */
    const bool letters = strcmp(p->prefix, "emnist-letters-") == 0, byclass = strcmp(p->prefix, "emnist-byclass-") == 0;
    const bool more =
        byclass || strcmp(p->prefix, "emnist-balanced-") == 0 || strcmp(p->prefix, "emnist-bymerge-") == 0;
    char all[EMNIST_CLASSES + 1];
    snprintf(all, sizeof all, "%s%s%s", digits, more ? upper : "", byclass ? lower : more ? apart : "");
    for (size_t i = 0; letters && i < sizeof upper - 1; i++)
        snprintf(m->names[i + 1], sizeof m->names[i + 1], "%c%c", upper[i], lower[i]);
    for (size_t i = 0; !letters && all[i]; i++)
        snprintf(m->names[i], sizeof m->names[i], "%c", all[i]);
    m->classes = letters ? (int)sizeof upper : (int)strlen(all);
    return 0;
}

static int read_mapping(const struct place *p, struct mapping *m, struct err *e)
{
    char path[PATH_MAX], line[80];
    FILE *f = NULL;
    int rc, label, code, used, more;
    snprintf(path, sizeof path, "%s/%smapping.txt", p->dir, p->prefix);
    if ((rc = file_stream_regular(&f, path, ERR_DATA, e)) < 0)
        return rc == -ENOENT ? known_mapping(p, m) : rc;
    while (rc == 0 && fgets(line, sizeof line, f)) {
        if (sscanf(line, "%d %d%n", &label, &code, &used) != 2 || label < 0 || label >= EMNIST_CLASSES || code <= ' ' ||
            code > '~') {
            rc = err_set(e, ERR_DATA, "'%s': expected lines of a label below %d and the codes of its characters", path,
                         EMNIST_CLASSES);
            break;
        }
        int at = snprintf(m->names[label], sizeof m->names[label], "%c", code);
        if (sscanf(line + used, "%d", &more) == 1 && more > ' ' && more <= '~')
            snprintf(m->names[label] + at, sizeof m->names[label] - (size_t)at, "%c", more);
        m->classes = label + 1 > m->classes ? label + 1 : m->classes;
    }
    fclose(f);
    return rc;
}

static int check_emnist(struct raw_set *r, const struct place *p, const struct dataset_options *o, struct err *e)
{
    struct mapping m = {.classes = 0};
    TRY(read_mapping(p, &m, e));
    for (int i = 0; i < m.classes; i++) {
        if (!m.names[i][0]) /* 0 of letters, which begin with 1 */
            snprintf(m.names[i], sizeof m.names[i], "none (%d)", i);
        m.list[i] = m.names[i];
    }
    return raw_set_check(r, o, m.list, m.classes, e);
}

int dataset_open_mnist(struct dataset **ret, const char *path, const struct dataset_options *o, struct err *e)
{
    char names[SET_NAMES];
    struct place p;
    const int sets = find_sets(path, &p, names, sizeof names);
    if (sets == 0)
        return err_set(e, ERR_DATA, "'%s/train-images-idx3-ubyte' (or .gz) does not exist", path);
    if (sets > 1 && strchr(names, 'M')) /* MNIST, FashionMNIST */
        return err_set(e, ERR_DATA, "'%s' holds several sets (%s): give one, as %s/%.*s", path, names, path,
                       (int)strcspn(names, ","), names);
    if (sets > 1)
        return err_set(e, ERR_DATA, "'%s' holds %d sets of EMNIST (%s): give one, as %s/%.*s", path, sets, names, p.dir,
                       (int)strlen(p.prefix) - 1, p.prefix);
    struct raw_set *r = raw_set_create(p.prefix[0] ? "EMNIST" : "MNIST");
    if (!r)
        return err_set(e, -ENOMEM, "no memory for a data set");
    int rc = load_part(r, &p, o, e);
    if (rc == 0)
        rc = p.prefix[0] ? check_emnist(r, &p, o, e) : raw_set_check(r, o, NULL, CLASSES, e);
    if (rc < 0)
        dataset_close(&r->base);
    else
        *ret = &r->base;
    return rc;
}
