/* Optimistic locks: who wants to know whether a key has changed since it looked. Pure. */
#ifndef CRUN_RENDEZVOUSD_WATCH_H
#define CRUN_RENDEZVOUSD_WATCH_H

#include <stdbool.h>
#include <stddef.h>

struct request_arg;
struct watches; /* of one key-space */

struct watcher {
    struct watch *watches;
    bool broken; /* a key has changed */
    size_t bytes;
};

int watches_create(struct watches **ret); /* -ENOMEM */
void watches_destroy(struct watches *w);  /* all watchers are gone */

int watches_add(struct watches *w, struct watcher *one, const struct request_arg *key); /* again: no-op. -ENOMEM */
void watches_forget(struct watches *w, struct watcher *one);                            /* all; not broken any more */
void watches_changed(struct watches *w, const char *key, size_t key_len);

#endif
