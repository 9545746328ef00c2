/* Events, news and job settings of the rendezvous as text, the same on every wire and in every log: RDZV.* arguments
 * and answers (reference/protocol.md), requests and news in Redis and in a directory, the decision log.
 *
 * A record is one line of fields "key=value" with single spaces between, in any order, no newline. Within a value,
 * space, '%', '=' and every byte outside 0x21..0x7e are %XX (upper-case hex); an empty value is "key=". Unknown keys
 * are ignored, so that versions can talk to each other; RDZV_PROTOCOL changes when they cannot. A key missing in the
 * text leaves 0, "" or -1 (rank, node_rank, group_rank, rank_base, role_base). Numbers are decimal, checked against the
 * field's range: -EINVAL names key and value. */
#ifndef CRUN_COMMON_RDZV_WIRE_H
#define CRUN_COMMON_RDZV_WIRE_H

#include <stddef.h>

#include "common/rdzv/machine/rdzv.h"

struct buf;
struct err;

#define RDZV_PROTOCOL 1             /* JOIN carries it as v=1 */
#define RDZV_REPORT_MAX (16 << 10)  /* bytes of what a node reports of itself (RDZV.REPORT) */
#define RDZV_FAILURE_MAX (6 << 10)  /* and of a job's failure report (RDZV.POSTMORTEM) */
#define RDZV_ANSWER_MAX (256 << 10) /* bytes of an answer to a question (RDZV.ANSWER) */

/* Append one record. event: kind=join node=... and the fields of that kind. -ENOMEM. */
int rdzv_event_encode(const struct rdzv_event *ev, struct buf *out);
int rdzv_event_decode(const char *p, size_t n, struct rdzv_event *ret, struct err *e);
int rdzv_news_encode(const struct rdzv_news *news, struct buf *out);
int rdzv_news_decode(const char *p, size_t n, struct rdzv_news *ret, struct err *e);

/* Job settings: v=1 nnodes=2:4 max_restarts=3 restart_window=0 ... (milliseconds). They follow a JOIN's fields on the
 * same line: both decoders ignore what is the other's. encode writes all of them. decode: a key missing in the text
 * leaves that setting of *ret as it was, so that a caller fills in defaults before; -EINVAL for another protocol
 * version, with both named. */
void rdzv_config_defaults(struct rdzv_config *ret); /* one node, no restarts, no backoff; the rest as rdzv.h says */
int rdzv_config_encode(const struct rdzv_config *c, struct buf *out);
int rdzv_config_decode(const char *p, size_t n, struct rdzv_config *ret, struct err *e);

/* May a new job have these durations? silence, kill and back-offs up to 10 minutes, all others up to 7 days: a job
 * holds its place at a rendezvous for so long. -EINVAL names the first duration that is too long, and its bound. */
#define RDZV_LIVENESS_MAX_MS (10 * 60000)
#define RDZV_TIME_MAX_MS (7 * 86400000)
int rdzv_config_check_times(const struct rdzv_config *c, struct err *e);

/* 0 if an agent with `theirs` may join a job of `ours`; ERR_REFUSED names the first setting that differs and both
 * values, as the user typed them (--nnodes 2:4, not 2:3). first_round is not compared. */
int rdzv_config_differs(const struct rdzv_config *ours, const struct rdzv_config *theirs, struct err *e);

/* Append one "key=value" field with escaping (a space before it unless out is empty or ends in '\n'). For fields that a
 * host adds of its own. */
int rdzv_field_text(struct buf *out, const char *key, const char *value);
int rdzv_field_int(struct buf *out, const char *key, long long value);
/* The field of a record: 1 and the unescaped value (NUL-terminated) in ret[cap], 0 if it is not there, -EINVAL if
 * malformed or too long. */
int rdzv_field_find(const char *p, size_t n, const char *key, char *ret, size_t cap);
/* The same for a field that is a number; `otherwise` if the field is absent. */
long long rdzv_field_number(const char *p, size_t n, const char *key, long long otherwise);

/* A refusal without the protocol's word before its sentence ("NOJOB run 'j' is unknown here"), for people. */
const char *rdzv_refusal(const char *answer);

#endif
