/* Which host of a list a node dials (--rdzv-endpoint node1,node2,node3), as that node sees it. Pure: no I/O, no clock.
 * launcher/rendezvous/rdzv_client_listed.c is its shell, tests/sim drives it too. Decision 0039 has the rules.
 *
 * The life of a node:
 *   - asking: it asks all hosts how many seats they hear, and which round they had last. It dials the best of those
 *     that answer in time: one that acknowledges its members, or would with this node; else the one that hears most
 *     seats; else the one with the highest round; else the first of the list;
 *   - at a host: it is connected there, or tries to be.
 * What goes wrong, and what is done:
 *   - the connection is lost: it asks anew. While its workers run it goes to another host only if the one that it was
 *     at refuses to be dialled, or the other one acknowledges its members already;
 *   - nodes that began together are at several hosts, and each host hears too few: a node that has no workers and is
 *     not acknowledged asks anew about every half a second, and goes to a better host;
 *   - the host acknowledges nothing for silence_ms, plus a random time of up to twice that: the node asks anew. For
 *     twice silence_ms the present host loses ties. The connection stays until another host is better;
 *   - no host answers: it asks again and again;
 *   - more than half of the list refuses this node's secret, no other host takes it, nobody has come to its own, and
 *     none has ever acknowledged it: it ends. With a lower bound one stranger could end the other nodes. */
#ifndef CRUN_COMMON_RDZV_HOSTS_H
#define CRUN_COMMON_RDZV_HOSTS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/choice.h"

#define HOSTS_MAX 16
#define HOSTS_ASK_MS 200   /* ms; later answers are ignored */
#define HOSTS_AGAIN_MS 300 /* ms until all hosts are asked again after none could be dialled */
/* A node without workers that its host does not acknowledge asks all hosts anew after HOSTS_LOOK_MS + MIN ×
 * HOSTS_LOOK_SEAT_MS, and a random part of that again. */
#define HOSTS_LOOK_MS 250
#define HOSTS_LOOK_SEAT_MS 4
#define HOSTS_DENIALS 2 /* denials in a row after which a node gives up; one may be of a host just replaced */
#define HOSTS_EFFECTS_MAX 4

#define HOSTS_STATES(X)                                                                                                \
    X(HOSTS_IDLE, "idle")       /* takes no part */                                                                    \
    X(HOSTS_ASKING, "asking")   /* answers of the hosts are awaited */                                                 \
    X(HOSTS_PAUSING, "pausing") /* none could be dialled */                                                            \
    X(HOSTS_AT, "at a host")    /* `host` was dialled */

enum hosts_state { HOSTS_STATES(CHOICE_ID) };
const char *hosts_state_name(enum hosts_state s);

struct hosts_options {
    int count; /* of hosts, 2..HOSTS_MAX */
    int min;   /* nodes of a round */
    int64_t silence_ms;
    uint64_t seed; /* of chance */
};

enum hosts_event_kind {
    HOSTS_BEGIN,  /* this node wants a host */
    HOSTS_ANSWER, /* to HOSTS_ASK, of `host` */
    HOSTS_ACKED,  /* the host has acknowledged a request */
    HOSTS_AWAY,   /* the connection is lost, or could not be made; refused: the host's address refused it */
    HOSTS_LEAVE,  /* take no part any more */
    HOSTS_TICK,
};

enum hosts_answer {
    HOSTS_NONE,    /* no answer, or one that does not help */
    HOSTS_REFUSED, /* nobody listens there */
    HOSTS_DENIED,  /* this node does not accept the host's proof, or the host not this node's */
    HOSTS_HEARS,   /* `seats`, `round` */
};

struct hosts_event {
    enum hosts_event_kind kind;
    bool working; /* in all events: workers run here */
    bool refused;
    int host;
    enum hosts_answer answer;
    bool own;       /* the host is this node */
    int seats;      /* seats that it hears, not counting this node's */
    uint64_t round; /* newest round that it had; 0: none */
};

enum hosts_effect_kind {
    HOSTS_ASK,  /* all hosts; earlier questions are void */
    HOSTS_DIAL, /* h->host */
    HOSTS_DENY, /* this node cannot take part: its secret is refused */
};

struct hosts {
    struct hosts_options o;
    enum hosts_state state;
    enum hosts_effect_kind fx[HOSTS_EFFECTS_MAX];
    int fx_count;
    uint64_t rng;
    int host;                   /* the host that this node is at, or was at last; -1: none yet */
    bool connected;             /* to it, or trying */
    bool refused;               /* since the connection was lost, the host's address has refused to be dialled */
    bool acked;                 /* a host has acknowledged this node once */
    bool heard;                 /* the present host has acknowledged this node recently */
    int denials;                /* rounds of questions in a row that only denials answered */
    int64_t due;                /* of the next HOSTS_TICK; INT64_MAX: none */
    int64_t leave_at;           /* from then on the present host loses ties */
    int64_t avoided[HOSTS_MAX]; /* loses ties until then */
    bool denies[HOSTS_MAX];     /* its last answer denied us */
    struct {
        enum hosts_answer answer;
        bool here, own;
        int seats;
        uint64_t round;
    } seen[HOSTS_MAX]; /* answers to the newest question */
};

void hosts_init(struct hosts *h, const struct hosts_options *o);

/* Apply one event. Afterwards h->fx holds the effects, in order. */
void hosts_step(struct hosts *h, const struct hosts_event *ev, int64_t now);
int64_t hosts_deadline(const struct hosts *h); /* of the next HOSTS_TICK; INT64_MAX: never */

#endif
