/* CIFAR-10 as its archive for Python has it, and torchvision downloads it: data_batch_1 .. 5 and test_batch, each one
 * pickle of a dict {"data": an array of n x 3072 bytes, "labels": a list of n small numbers, ...}.
 *
 * Nothing is executed. The opcodes are walked over one by one, and two things are taken: the text of n x 3072 bytes
 * that follows the key "data", and the numbers between the key "labels" and the end of their list. */
#include "worker/data/sets/cifar10_pickle.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "common/base/err.h"

struct walk {
    const uint8_t *p, *end;
    struct cifar10_pickle *ret;
    enum { OTHER, DATA, LABELS } key; /* the last text that was one */
    size_t room;                      /* of ret->labels */
};

static uint32_t little(const uint8_t *p, int n)
{
    uint32_t v = 0;
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
    return op == 'U' || op == 'C' || op == 0x8c ? 1 : op == 'T' || op == 'X' || op == 'B' ? 4 : 0;
}

static bool is_text(const uint8_t *p, size_t n, const char *text)
{
    return n == strlen(text) && memcmp(p, text, n) == 0;
}

static void take_text(struct walk *w, const uint8_t *p, size_t n)
{
    if (w->key == DATA && n >= CIFAR10_PICTURE && n % CIFAR10_PICTURE == 0) {
        w->ret->pixels = p;
        w->ret->n = n / CIFAR10_PICTURE;
        w->key = OTHER;
    } else if (is_text(p, n, "data")) {
        w->key = DATA;
    } else if (is_text(p, n, "labels")) {
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
        const uint8_t *end = memchr(w->p, '\n', (size_t)(w->end - w->p));
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
        const size_t bytes = left >= (size_t)text ? little(w->p, text) : 0;
        if (left < (size_t)text || bytes > left - (size_t)text)
            return cut_fail(e);
        take_text(w, w->p + text, bytes);
        w->p += (size_t)text + bytes;
        return 0;
    }
    if (n < 0)
        return err_set(e, ERR_DATA, "it is no pickle of CIFAR-10's (opcode %02x)", op);
    if (left < (size_t)n)
        return cut_fail(e);
    if (w->key == LABELS && op == 'K')
        TRY(take_label(w, *w->p, e));
    if (w->key == LABELS && op == 'e') /* APPENDS; a list of more comes in pieces of a thousand */
        w->key = w->p < w->end && *w->p == '(' ? LABELS : OTHER;
    w->p += n;
    return 0;
}

int cifar10_pickle_read(struct cifar10_pickle *ret, const void *data, size_t n, struct err *e)
{
    struct walk w = {.p = data, .end = (const uint8_t *)data + n, .ret = ret, .room = ret->room};
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
