/* Writes and reads copies of a rank's state in memory that outlives its process. */
#include "worker/session/memory_slot.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/base/crc32c.h"
#include "common/base/err.h"
#include "worker/snapshot/slices.h"
#include "worker/state/state.h"

#define MAGIC UINT64_C(0x6b65707473746174)
/* Where a place, and its second copy, begin: far enough apart for any state, and only what is written is
 * memory. */
#define SLOT_BYTES ((off_t)1 << 40)
#define HALF_BYTES (SLOT_BYTES / MEMORY_SLOT_HALVES)
#define HEAD_BYTES 4096
#define ROOM_BYTES ((size_t)1 << 20)

struct head {
    _Atomic uint64_t whole; /* MAGIC: all the rest is there */
    uint64_t kin, bytes;
    struct memory_copy copy;
    char note[MEMORY_SLOT_NOTE];
};
static_assert(sizeof(struct head) <= HEAD_BYTES, "a copy begins behind its head");

struct memory_slot {
    struct slices slices; /* its copy is one of the halves */
    uint32_t kin;
    struct head *halves[MEMORY_SLOT_HALVES];
};

static size_t half_bytes(const struct memory_slot *m)
{
    return HEAD_BYTES + m->slices.copy_bytes;
}

/* Of all that says which part of which state this is. */
static uint32_t kin_of(const struct slices *s, uint32_t crc)
{
    for (size_t i = 0; i < s->n; i++) {
        const struct ckpt_tensor *t = &s->tensors[i];
        const int64_t of[] = {t->dtype, slices_count(s, i)};
        crc = crc32c(crc, t->name, strlen(t->name));
        crc = crc32c(crc, of, sizeof of);
    }
    for (size_t i = 0; i < s->n_held; i++) {
        const struct piece *p = &s->held[i].piece;
        const int64_t of[] = {p->tensor, p->line, p->row, p->col, p->cols, p->first, p->end};
        crc = crc32c(crc, of, sizeof of);
    }
    return crc;
}

static int map_half(struct memory_slot *m, int fd, int place, int half, struct err *e)
{
    const off_t at = place * SLOT_BYTES + half * HALF_BYTES;
    const size_t bytes = half_bytes(m);
    if (bytes > (size_t)HALF_BYTES || fallocate(fd, 0, at, (off_t)bytes) < 0)
        return err_errno(e, errno, "cannot take %zu bytes of the node's memory for a copy of the state", bytes);
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, at);
    if (p == MAP_FAILED)
        return err_errno(e, errno, "cannot map %zu bytes of the node's memory", bytes);
    m->halves[half] = p;
    return 0;
}

/* A copy of all that this rank has. */
static int plan_copy(struct memory_slot *m, struct state *s, struct err *e)
{
    TRY(slices_init(&m->slices, s, e));
    bool *all = malloc(m->slices.n_held + 1);
    if (!all)
        return err_errno(e, ENOMEM, "a copy of the state");
    memset(all, true, m->slices.n_held);
    const int rc = slices_plan_copy(&m->slices, all, e);
    free(all);
    return rc;
}

static int prepare(struct memory_slot *m, int fd, int place, struct state *s, uint32_t kin, struct err *e)
{
    TRY(plan_copy(m, s, e));
    m->kin = kin_of(&m->slices, kin);
    for (int i = 0; i < MEMORY_SLOT_HALVES; i++)
        TRY(map_half(m, fd, place, i, e));
    return 0;
}

int memory_slot_open(struct memory_slot **ret, int fd, int place, struct state *s, uint32_t kin, struct err *e)
{
    struct memory_slot *m = calloc(1, sizeof *m);
    if (!m)
        return err_errno(e, ENOMEM, "a copy of the state");
    const int rc = prepare(m, fd, place, s, kin, e);
    if (rc < 0) {
        memory_slot_close(m);
        return rc;
    }
    *ret = m;
    return 0;
}

void memory_slot_close(struct memory_slot *m)
{
    if (!m)
        return;
    for (int i = 0; i < MEMORY_SLOT_HALVES; i++)
        if (m->halves[i])
            munmap(m->halves[i], half_bytes(m));
    m->slices.copy = NULL; /* it was one of them */
    slices_finish(&m->slices);
    free(m);
}

size_t memory_slot_bytes(const struct memory_slot *m)
{
    return MEMORY_SLOT_HALVES * half_bytes(m);
}

int memory_slot_need(struct state *s, int64_t *ret, struct err *e)
{
    struct memory_slot m = {0};
    const int rc = plan_copy(&m, s, e);
    *ret = rc < 0 ? 0 : (int64_t)memory_slot_bytes(&m);
    slices_finish(&m.slices);
    return rc;
}

static void look(const struct memory_slot *m, int half, struct memory_copy *ret)
{
    const struct head *h = m->halves[half];
    const bool is_mine = atomic_load_explicit(&h->whole, memory_order_acquire) == MAGIC && h->kin == m->kin &&
                         h->bytes == m->slices.copy_bytes;
    *ret = is_mine ? h->copy : (struct memory_copy){.updates = -1};
}

void memory_slot_find(const struct memory_slot *m, struct memory_copy ret[MEMORY_SLOT_HALVES])
{
    for (int i = 0; i < MEMORY_SLOT_HALVES; i++)
        look(m, i, &ret[i]);
}

static int older_half(const struct memory_slot *m)
{
    struct memory_copy c[MEMORY_SLOT_HALVES];
    memory_slot_find(m, c);
    return c[1].updates < c[0].updates;
}

int memory_slot_keep(struct memory_slot *m, struct memory_copy as, const void *note, size_t n, struct err *e)
{
    struct head *h = m->halves[older_half(m)];
    size_t infinite;
    assert(n <= sizeof h->note);
    atomic_store(&h->whole, 0);
    m->slices.copy = (char *)h + HEAD_BYTES;
    TRY(slices_copy(&m->slices, e));
    TRY(slices_find_infinite(&m->slices, NULL, ROOM_BYTES, &infinite, e));
    if (infinite < m->slices.n)
        return 0;
    h->kin = m->kin;
    h->bytes = m->slices.copy_bytes;
    h->copy = as;
    memcpy(h->note, note, n);
    atomic_store_explicit(&h->whole, MAGIC, memory_order_release);
    return 0;
}

int memory_slot_restore(struct memory_slot *m, struct memory_copy which, void *note, size_t n, struct err *e)
{
    struct memory_copy c[MEMORY_SLOT_HALVES];
    memory_slot_find(m, c);
    for (int i = 0; i < MEMORY_SLOT_HALVES; i++) {
        if (c[i].updates != which.updates || c[i].round != which.round)
            continue;
        m->slices.copy = (char *)m->halves[i] + HEAD_BYTES;
        TRY(slices_copy_back(&m->slices, e));
        memcpy(note, m->halves[i]->note, n);
        return 0;
    }
    return err_set(e, -ENOENT, "no copy of step %lld is in memory", (long long)which.updates);
}

void memory_slot_forget_beyond(struct memory_slot *m, int64_t updates)
{
    for (int i = 0; i < MEMORY_SLOT_HALVES; i++)
        if (m->halves[i]->copy.updates > updates)
            atomic_store(&m->halves[i]->whole, 0);
}
