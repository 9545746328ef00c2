/* One list of ids and words gives an enum, its names, and what an option offers:
 *
 *     #define SHUFFLES(X) X(SHUFFLE_AUTO, "auto") X(SHUFFLE_ON, "on") X(SHUFFLE_OFF, "off")
 *     enum shuffle { SHUFFLES(CHOICE_ID) };
 *     static const char *const names[] = {SHUFFLES(CHOICE_NAME)};
 *     .choices = CHOICES(SHUFFLES) */
#ifndef CRUN_COMMON_CHOICE_H
#define CRUN_COMMON_CHOICE_H

#define CHOICE_ID(id, word) id,
#define CHOICE_NAME(id, word) [id] = word,
#define CHOICE_WORD(id, word) "|" word
#define CHOICES(list) (&list(CHOICE_WORD)[1]) /* "auto|on|off" */

#endif
