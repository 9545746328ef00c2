/* crun's own texts on their way to the output process, which writes them in order with the workers' lines. What it has
 * not taken within OWN_TEXTS_MS (it is stopped, or dead) goes round it, onto stderr, as soon as that can be written
 * without waiting; output_claim() settles who writes a text. */
#ifndef CRUN_LAUNCHER_OWN_TEXTS_H
#define CRUN_LAUNCHER_OWN_TEXTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#define OWN_TEXTS_MS 250

struct output_page;
struct own_texts;

/* send(): to the process, if there is one. NULL: out of memory. */
struct own_texts *own_texts_create(uv_loop_t *loop, struct output_page *page,
                                   void (*send)(void *arg, uint64_t number, const char *bytes, size_t n), void *arg);
void own_texts_add(struct own_texts *t, const char *bytes, size_t n);
/* Another process is there: what nobody has taken. */
void own_texts_send_again(struct own_texts *t);
/* Without waiting for anybody; always: from now on. */
void own_texts_go_round(struct own_texts *t, bool always);
void own_texts_destroy(struct own_texts *t); /* NULL allowed; the loop turns once more after it */

#endif
