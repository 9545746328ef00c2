/* CIFAR-10 and CIFAR-100 as their archives for Python have them, and torchvision downloads them: data_batch_1 .. 5 and
 * test_batch, or train and test, each one pickle of a dict {"data": an array of n x 3072 bytes, "labels" (CIFAR-100:
 * "fine_labels"): a list of n small numbers, ...}. Python 3 may have written it again, with another protocol: in
 * protocol 2 it writes bytes as the text of those characters.
 *
 * Nothing is executed. The opcodes are walked over one by one, and two things are taken: the text of n x 3072 bytes
 * that follows the key "data", and the numbers between the key of labels and the end of their list. */
#include "worker/data/sets/cifar10_pickle.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "common/base/err.h"

struct walk {
    uint8_t *p, *end;
    struct cifar10_pickle *ret;
    enum { OTHER, DATA, LABELS } key; /* the last text that was one */
    size_t room;                      /* of ret->labels */
};

static uint64_t little(const uint8_t *p, int n)
{
    uint64_t v = 0;
    while (n-- > 0)
        v = v << 8 | p[n];
    return v;
}

/* Bytes of the argument behind an opcode, but for texts and lines; -1: it is none of those. */
static int argument(uint8_t op)
{
    switch (op) {
    case 'K':  /* BININT1 */
    case 'q':  /* BINPUT */
    case 'h':  /* BINGET */
    case 0x80: /* PROTO */
        return 1;
    case 'M': /* BININT2 */
        return 2;
    case 'J': /* BININT */
    case 'r': /* LONG_BINPUT */
    case 'j': /* LONG_BINGET */
        return 4;
    case 'G':  /* BINFLOAT */
    case 0x95: /* FRAME */
        return 8;
    case '(': /* MARK, and what makes, fills or calls what stands on the stack */
    case '}':
    case ']':
    case ')':
    case 't':
    case 'a':
    case 'e':
    case 's':
    case 'u':
    case 'R':
    case 'b':
    case 'N':
    case 'l':
    case 'd':
    case 0x85:
    case 0x86:
    case 0x87:
    case 0x88:
    case 0x89:
    case 0x93:
    case 0x94:
        return 0;
    default:
        return -1;
    }
}

/* Bytes of the length in front of a text; 0: the opcode is no text. */
static int length_of_length(uint8_t op)
{
    switch (op) {
    case 'U': /* SHORT_BINSTRING, SHORT_BINBYTES, SHORT_BINUNICODE */
    case 'C':
    case 0x8c:
        return 1;
    case 'T': /* BINSTRING, BINUNICODE, BINBYTES */
    case 'X':
    case 'B':
        return 4;
    case 0x8d: /* BINUNICODE8, BINBYTES8, BYTEARRAY8 */
    case 0x8e:
    case 0x96:
        return 8;
    default:
        return 0;
    }
}

static bool is_unicode(uint8_t op)
{
    return op == 0x8c || op == 'X' || op == 0x8d;
}

/* UTF-8 of characters below 256 becomes those bytes, in place: how many; of anything else 0. */
static size_t latin1_of_utf8(uint8_t *p, size_t n)
{
    size_t to = 0;
    for (size_t i = 0; i < n; to++)
        if (p[i] < 0x80) {
            p[to] = p[i++];
        } else if ((p[i] == 0xc2 || p[i] == 0xc3) && i + 1 < n && (p[i + 1] & 0xc0) == 0x80) {
            p[to] = (uint8_t)(p[i] << 6 | (p[i + 1] & 0x3f));
            i += 2;
        } else {
            return 0;
        }
    return to;
}

static bool is_text(const uint8_t *p, size_t n, const char *text)
{
    return n == strlen(text) && memcmp(p, text, n) == 0;
}

static void take_text(struct walk *w, uint8_t op, uint8_t *p, size_t n)
{
    if (w->key == DATA && n >= CIFAR10_PICTURE && is_unicode(op))
        n = latin1_of_utf8(p, n);
    if (w->key == DATA && n >= CIFAR10_PICTURE && n % CIFAR10_PICTURE == 0) {
        w->ret->pixels = p;
        w->ret->n = n / CIFAR10_PICTURE;
        w->key = OTHER;
    } else if (is_text(p, n, "data")) {
        w->key = DATA;
    } else if (is_text(p, n, w->ret->fine ? "fine_labels" : "labels")) {
        w->key = LABELS;
    }
}

static int take_label(struct walk *w, uint8_t label, struct err *e)
{
    if (w->ret->n_labels == w->room)
        return err_set(e, ERR_DATA, "it has more than %zu labels", w->room);
    w->ret->labels[w->ret->n_labels++] = label;
    return 0;
}

/* GLOBAL: two lines. */
static bool pass_lines(struct walk *w)
{
    for (int i = 0; i < 2; i++) {
        uint8_t *end = memchr(w->p, '\n', (size_t)(w->end - w->p));
        if (!end)
            return false;
        w->p = end + 1;
    }
    return true;
}

static int cut_fail(struct err *e)
{
    return err_set(e, ERR_DATA, "it is cut short");
}

static int one_op(struct walk *w, struct err *e)
{
    const uint8_t op = *w->p++;
    const size_t left = (size_t)(w->end - w->p);
    const int text = length_of_length(op), n = argument(op);
    if (op == 'c')
        return pass_lines(w) ? 0 : cut_fail(e);
    if (text) {
        const uint64_t bytes = left >= (size_t)text ? little(w->p, text) : 0;
        if (left < (size_t)text || bytes > left - (size_t)text)
            return cut_fail(e);
        take_text(w, op, w->p + text, (size_t)bytes);
        w->p += (size_t)text + bytes;
        return 0;
    }
    if (n < 0)
        return err_set(e, ERR_DATA, "it is no pickle of CIFAR's (opcode %02x)", op);
    if (left < (size_t)n)
        return cut_fail(e);
    if (w->key == LABELS && op == 'K')
        TRY(take_label(w, *w->p, e));
    if (w->key == LABELS && op == 'e') /* APPENDS; a list of more comes in pieces of a thousand */
        w->key = w->p < w->end && *w->p == '(' ? LABELS : OTHER;
    w->p += n;
    return 0;
}

int cifar10_pickle_read(struct cifar10_pickle *ret, void *data, size_t n, struct err *e)
{
    struct walk w = {.p = data, .end = (uint8_t *)data + n, .ret = ret, .room = ret->room};
    ret->n = ret->n_labels = 0;
    while (w.p < w.end && *w.p != '.') /* STOP */
        TRY(one_op(&w, e));
    if (w.p == w.end)
        return cut_fail(e);
    if (ret->n == 0 || ret->n != ret->n_labels)
        return err_set(e, ERR_DATA, "it holds %zu pictures of %d bytes and %zu labels", ret->n, CIFAR10_PICTURE,
                       ret->n_labels);
    return 0;
}
