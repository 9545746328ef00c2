/* Sends crun's own texts to the output process, which writes them in order with the workers' lines. A text that it
 * has not taken within OWN_TEXTS_MS (because it is stopped, or dead) is written directly to stderr as soon as that
 * is possible without waiting; output_claim() decides who writes a text. */
#ifndef CRUN_LAUNCHER_OWN_TEXTS_H
#define CRUN_LAUNCHER_OWN_TEXTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#define OWN_TEXTS_MS 250

struct output_page;
struct own_texts;

/* send(): called for each text; passes it to the output process, if there is one. NULL: no memory. */
struct own_texts *own_texts_create(uv_loop_t *loop, struct output_page *page,
                                   void (*send)(void *arg, uint64_t number, const char *bytes, size_t n), void *arg);
void own_texts_add(struct own_texts *t, const char *bytes, size_t n);
/* Another output process is there: send it the texts that nobody has taken. */
void own_texts_send_again(struct own_texts *t);
/* Write waiting texts directly to stderr, without waiting for the output process; always: all later ones, too. */
void own_texts_go_round(struct own_texts *t, bool always);
void own_texts_destroy(struct own_texts *t); /* NULL allowed; the loop must turn once more afterwards */

#endif
