/* The home of a simulated daemon: its memory, or a directory in which decisions land a while after they are appended.
 * A daemon that is killed meanwhile goes back to the last one that has landed, and so do the rules' books. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "common/base/err.h"
#include "tests/sim/sim_impl.h"

/* --- what lands */

static void drop_landing(struct sim_disk *d, struct landing *l)
{
    DL_DELETE(d->landings, l);
    buf_free(&l->text);
    free(l);
}

static void lose_landings(struct sim_disk *d)
{
    while (d->landings)
        drop_landing(d, d->landings);
}

void sim_disk_land(struct world *w)
{
    struct sim_disk *d = &w->disk;
    struct landing *l;
    while ((l = d->landings) && l->at <= w->now) {
        if (l->whole)
            buf_clear(&d->log);
        if (buf_add(&d->log, l->text.data, l->text.len) < 0)
            sim_broken(w, "no memory");
        d->books = l->books;
        drop_landing(d, l);
        d->home.stands++;
        d->home.landed(d->home.arg);
    }
}

void sim_disk_go_back(struct world *w)
{
    const struct books *b = &w->disk.books;
    lose_landings(&w->disk);
    w->account = b->account;
    memcpy(w->instance, b->instance, sizeof w->instance);
    w->known = -1; /* to be looked at */
    for (int i = 0; i < w->agent_count; i++) {
        w->agents[i].known = b->known[i];
        w->agents[i].joined_as = b->joined_as[i];
    }
}

/* --- the calls */

static bool has_core(const char *text)
{
    return strncmp(text, "machine ", 8) == 0 || strstr(text, "\nmachine ");
}

static int disk_identity(struct rdzv_home *base, char ret[RDZV_IDENTITY_MAX + 1], struct err *e)
{
    (void)base, (void)e;
    snprintf(ret, RDZV_IDENTITY_MAX + 1, "disk");
    return 0;
}

static int disk_load(struct rdzv_home *base, struct buf *ret, struct err *e)
{
    const struct sim_disk *d = (struct sim_disk *)base;
    (void)e;
    return buf_add(ret, d->log.data, d->log.len);
}

static void keep_books(const struct world *w, struct books *ret)
{
    ret->account = w->account;
    memcpy(ret->instance, w->instance, sizeof ret->instance);
    for (int i = 0; i < w->agent_count; i++) {
        ret->known[i] = w->agents[i].known;
        ret->joined_as[i] = w->agents[i].joined_as;
    }
}

static int64_t landing_time(struct world *w)
{
    const struct landing *last = w->disk.landings ? w->disk.landings->prev : NULL;
    const bool slow = sim_faulty(w) && sim_chance(w, 0.02);
    const int64_t at = w->now + sim_between(w, 0, slow ? 3000 : 10);
    return last && last->at > at ? last->at : at;
}

static int disk_append(struct rdzv_home *base, const struct rdzv_write *v, struct err *e)
{
    struct sim_disk *d = (struct sim_disk *)base;
    struct landing *l = calloc(1, sizeof *l);
    if (!l || buf_add(&l->text, v->decision->data, v->decision->len) < 0)
        return err_set(e, -ENOMEM, "no memory");
    l->at = landing_time(d->w);
    l->whole = v->whole;
    d->w->stats->compactions += v->whole;
    if (v->whole || strstr(v->decision->data, "@job ")) /* the machine whole, too */
        sim_account_compacted(d->w);
    else if (has_core(v->decision->data))
        sim_account_logged(d->w);
    keep_books(d->w, &l->books);
    DL_APPEND(d->landings, l);
    return RDZV_UNDER_WAY;
}

static void disk_forget(struct rdzv_home *base)
{
    struct sim_disk *d = (struct sim_disk *)base;
    lose_landings(d);
    buf_clear(&d->log);
    d->books = (struct books){0};
}

static const struct rdzv_home_ops disk_ops = {
    .name = "disk",
    .identity = disk_identity,
    .load = disk_load,
    .append = disk_append,
    .forget = disk_forget,
};

void sim_disk_open(struct world *w, void (*landed)(void *arg))
{
    rdzv_memory_init(&w->disk.home);
    if (w->durable)
        w->disk.home = (struct rdzv_home){.ops = &disk_ops, .landed = landed, .arg = w};
    w->disk.w = w;
}

void sim_disk_close(struct world *w)
{
    lose_landings(&w->disk);
    buf_free(&w->disk.log);
}
