/* What the leader writes into a node's slot: the answer to its requests up to number q, and its newest news. Three
 * lines: the head's fields, the news ("" if none), and the members' addresses ("" but for group rank 0). */
#ifndef CRUN_COMMON_RDZV_SLOT_H
#define CRUN_COMMON_RDZV_SLOT_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/choice.h"

struct buf;
struct err;

#define RDZV_ANSWERS(X)                                                                                                \
    X(ANSWER_OK, "ok")                                                                                                 \
    X(ANSWER_FENCED, "fenced")   /* a claim about an older round */                                                    \
    X(ANSWER_UNKNOWN, "unknown") /* the node has no place here: kill what works, JOIN again */                         \
    X(ANSWER_DIFFERS, "differs") /* its settings are not the job's */                                                  \
    X(ANSWER_REFUSED, "refused") /* it can have no place */

enum rdzv_answer { RDZV_ANSWERS(CHOICE_ID) };

struct rdzv_slot {
    char inc[20], instance[20]; /* the life of the node it speaks to; the job */
    uint64_t q;                 /* newest request answered */
    enum rdzv_answer answer;
    char text[400];             /* why, if not ok */
    const char *news, *members; /* borrowed from the text; lengths may be 0 */
    size_t news_len, members_len;
};

/* The head's fields alone. */
int rdzv_slot_head_encode(const struct rdzv_slot *s, struct buf *out);
int rdzv_slot_head_decode(const char *p, size_t n, struct rdzv_slot *ret, struct err *e);
int rdzv_slot_encode(const struct rdzv_slot *s, struct buf *out);
/* -EINVAL. */
int rdzv_slot_decode(const char *p, size_t n, struct rdzv_slot *ret, struct err *e);

#endif
