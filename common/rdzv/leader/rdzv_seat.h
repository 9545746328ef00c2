/* A node's place at a home (rdzv_home.h): what it writes into its beat, and what it makes of what it sees. Pure: no
 * I/O, no clock.
 *
 * - The beat carries a counter, the epoch this node has promised to heed, and every request the leader has not answered
 *   yet.
 * - A beat that was written extends the node's lease (silence_ms from when it was sent) only if the epoch seen with it
 *   is the one promised in it, and was claimed on the server that answers (rdzv_home_mark()): else its leader may be
 *   on another one, and think us dead. A new epoch is promised first, by the next beat: from then on nothing of an
 *   older reign is believed, and the new leader knows from the beat all that was believed before. Nor is it extended
 *   while the home does not hold the round that works here: it was lost, and others do not know of it. That is why a
 *   home may lose what it acknowledged.
 * - After the END a node shows itself until its workers are gone: that is what a new instance waits for. Its lease is
 *   the same as before: they have no longer than that where the home is out of reach, or knows the end no more.
 * - NEWS_ROUND is believed only as part of the answer to the newest JOIN, and only while the lease runs. After a lapse
 *   everything starts anew: a node without workers JOINs again, one with workers has to kill them. */
#ifndef CRUN_COMMON_RDZV_SEAT_H
#define CRUN_COMMON_RDZV_SEAT_H

#include "common/rdzv/homes/rdzv_home.h"
#include "common/rdzv/machine/rdzv.h"

struct err;

enum { SEAT_REQUESTS_MAX = 8 };

struct rdzv_request {
    uint64_t q;
    int kind;   /* enum rdzv_event_kind */
    char *text; /* the record */
};

struct rdzv_seat {
    char node[RDZV_ID_MAX + 1];
    char inc[20];                   /* this life of the node */
    char epoch[RDZV_EPOCH_MAX + 1]; /* promised */
    char instance[20];              /* of the job we are part of; "": none yet */
    int64_t silence_ms;
    uint64_t n;                                     /* beats so far */
    uint64_t q;                                     /* requests so far */
    uint64_t answered;                              /* the newest the leader has answered */
    uint64_t join_q;                                /* the newest JOIN */
    uint64_t known_round;                           /* highest round announced to us */
    int restarts;                                   /* the most announced to us */
    uint64_t seen;                                  /* seq of the newest news believed */
    bool joining;                                   /* JOIN is asked and no round came yet */
    bool works;                                     /* a round was believed, and neither DONE nor JOIN sent since */
    bool stops;                                     /* the end was believed while it worked: workers may be left */
    bool done, leaving;                             /* claimed; repeated to a new leader */
    bool bye;                                       /* set by close: all processes of this node are gone */
    int64_t lease;                                  /* runs until then */
    struct rdzv_event join;                         /* to repeat after a lapse */
    struct rdzv_cause why_leaving;                  /* of LEAVE */
    char *settings;                                 /* encoded job settings, follow each JOIN */
    struct rdzv_request waiting[SEAT_REQUESTS_MAX]; /* not answered yet, oldest first */
    int waiting_count;
};

/* What hear() found out; bits. */
enum {
    SEAT_AGAIN = 1,   /* exchange again at once: an epoch to promise, a JOIN to repeat */
    SEAT_NEWS = 2,    /* *news is new, and to be believed */
    SEAT_UNKNOWN = 4, /* we have no place: kill what works, JOIN again */
    SEAT_REFUSED = 8, /* this node cannot take part; *why */
    SEAT_LAPSED = 16, /* the lease had run out before this answer: kill what works, JOIN again */
    SEAT_LOST = 32,   /* the home holds another job than the one we were part of (it was emptied); goes with UNKNOWN */
};

struct rdzv_heard {
    unsigned bits;
    struct rdzv_news news;
    /* with NEWS_ROUND on group rank 0: every address of every member; else "". Valid as long as the view */
    const char *members;
    size_t members_len;
    int code; /* REFUSED: ERR_MISMATCH or ERR_REFUSED */
    char why[512];
};

/* inc: random, of this life. settings: rdzv_config_encode() text, copied. -ENOMEM. */
int rdzv_seat_init(struct rdzv_seat *s, const char *node, const char *inc, const struct rdzv_config *c, int64_t now);
void rdzv_seat_finish(struct rdzv_seat *s);

/* Queue a request; the next beat carries it. JOIN, FAIL, DONE: the round is filled in. -ENOMEM, -EBUSY. */
int rdzv_seat_ask(struct rdzv_seat *s, const struct rdzv_event *ev);

/* The beat to write now. */
int rdzv_seat_beat(struct rdzv_seat *s, struct buf *out);

/* What came back for a beat sent at `sent`. -EPROTO for a slot that makes no sense. */
int rdzv_seat_hear(struct rdzv_seat *s, const struct rdzv_view *v, int64_t sent, int64_t now, struct rdzv_heard *ret,
                   struct err *e);

#endif
