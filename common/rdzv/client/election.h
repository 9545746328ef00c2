/* Who leads a job whose home the nodes share (rdzv_home.h: a Redis, a folder), as one of them sees it. Pure: no I/O, no
 * clock. launcher/rendezvous/rdzv_client_elected.c is its shell, tests/sim drives it too.
 *
 * The home keeps one claim: who leads (an epoch), where it listens, and how often it was renewed. Claim, renewal and
 * release are each one compare-and-set. A claim is valid for D. The life of a node:
 *   - looking: no leader answers it. It reads the claim again and again, and dials whoever has it;
 *   - following: the leader has acknowledged it. It reads nothing;
 *   - leading: it has claimed, has read the decisions, and serves. It renews its claim several times in D, and
 *     acknowledges only until D after the sending of the last renewal that was confirmed.
 * When a node claims (docs/design/decisions/0038-members-dial-their-leader.md says why that is safe):
 *   - nobody ever did, or the leader has released its claim: at once;
 *   - the claim was seen unchanged for D while the home answered. That counts from the receipt of the first answer that
 *     showed it to the sending of the new claim; a time in which the home did not answer counts nothing. For its
 *     away_ms in place of D where its leader has not acknowledged this node in this epoch, and lately;
 *   - the leader's address refuses this node, which that leader has acknowledged in this epoch, and lately;
 *   - it is its own, but nobody is served under it any more.
 * A leader that does not reach its home goes on after D, until away_ms after the sending of the last renewal that was
 * confirmed, while all whom it has acknowledged are bound (rendezvousd/jobs/jobs_term.c): they asked it after what it
 * sent less than D ago, so none of them claims yet, and all others wait longer.
 * Nodes claim in turn, by their group rank; whoever has released a claim comes last.
 * What a new leader owes: nobody is given up before `grace_ms` and the silence and the kill that each member has in any
 * case; where decisions may be lost, nothing at all is decided before `hold_ms` after the claim. */
#ifndef CRUN_COMMON_RDZV_ELECTION_H
#define CRUN_COMMON_RDZV_ELECTION_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/choice.h"
#include "common/rdzv/homes/rdzv_claim.h"

#define ELECTION_D_MS 1500 /* how long a claim is valid, where its home says nothing else */
/* A leader that hears fewer than MIN nodes for this long releases its claim. The time starts when it has given up
 * the nodes it took over: if it released earlier, the next leader would wait for them from the start. */
#define ELECTION_FEW_MS 10000
#define ELECTION_EFFECTS_MAX 8

#define ELECTION_STATES(X)                                                                                             \
    X(ELECTION_IDLE, "idle")           /* takes no part */                                                             \
    X(ELECTION_LOOKING, "looking")     /* no leader answers */                                                         \
    X(ELECTION_FOLLOWING, "following") /* the leader has acknowledged this node */                                     \
    X(ELECTION_CLAIMING, "claiming")   /* the claim is under way */                                                    \
    X(ELECTION_LOADING, "loading")     /* we have the claim; reading the decisions so far */                           \
    X(ELECTION_LEADING, "leading")                                                                                     \
    X(ELECTION_RELEASING, "releasing") /* acknowledging nobody; the release is under way */

enum election_state { ELECTION_STATES(CHOICE_ID) };
const char *election_state_name(enum election_state s);

struct election_options {
    int64_t silence_ms, kill_ms;
    int64_t valid_ms;             /* D; 0: ELECTION_D_MS */
    int64_t away_ms;              /* of our claims while MIN nodes are heard; 0: none */
    int nodes;                    /* number of nodes of the job, roughly: with more nodes each looks less often */
    bool never;                   /* this node may not lead */
    uint64_t seed;                /* for its epochs and random delays */
    const struct rdzv_claim *own; /* address, port and node of our claims; copied */
};

enum election_event_kind {
    ELECTION_BEGIN,   /* this node wants a leader */
    ELECTION_SEEN,    /* result of LOOK. rc 1: claim; 0: nobody ever claimed; < 0: the home does not answer */
    ELECTION_CLAIMED, /* rc 1, 0: somebody was faster, < 0: not known */
    /* rc 1; 0: there are no decisions; < 0: they cannot be read. hold: some may be lost. hold_ms: for so long after
     * now another server may have made acknowledgements that this one does not know of */
    ELECTION_LOADED,
    /* result of the renewal. rc 1: claim is what the home has now; 0: another node claimed; < 0: not known */
    ELECTION_RENEWED,
    ELECTION_UNABLE,   /* the home takes no decision of ours */
    ELECTION_RELEASED, /* tried */
    ELECTION_ACKED,    /* the leader dialled has acknowledged this node */
    ELECTION_AWAY,     /* the leader dialled does not answer; refused: its address refused the connection */
    ELECTION_HIGHER,   /* a request named `epoch`, above ours */
    ELECTION_HEARD,    /* enough: MIN nodes are heard here */
    ELECTION_RANK,     /* rank of this node in the newest round */
    ELECTION_LEAVE,    /* release our claim, and take no part any more */
    ELECTION_TICK,
};

struct election_event {
    enum election_event_kind kind;
    int rc;
    const struct rdzv_claim *claim;
    int64_t sent; /* when the call was made; AWAY: the newest request that the leader acknowledged */
    int64_t hold_ms;
    bool refused, enough, hold;
    int rank;
    const char *epoch;
};

enum election_effect_kind {
    ELECTION_LOOK,    /* read the claim */
    ELECTION_CLAIM,   /* replace exactly x->view by x->own */
    ELECTION_LOAD,    /* read the decisions; then lead, with x->grace_ms and x->hold_until */
    ELECTION_RENEW,   /* x->own */
    ELECTION_RELEASE, /* write x->own with its release */
    ELECTION_DIAL,    /* dial the leader in x->view; greet with its epoch, and with x->highest */
    ELECTION_UNTIL,   /* lead no later than x->until; with x->away_ms as jobs_lead_away() says */
    ELECTION_RESIGN,  /* serve nobody any more */
};

struct election {
    struct election_options o;
    enum election_state state;
    enum election_effect_kind fx[ELECTION_EFFECTS_MAX];
    int fx_count;
    uint64_t rng;

    struct rdzv_claim own;            /* our newest claim; epoch "": we never claimed */
    struct rdzv_claim view;           /* the claim as last seen, or as we replaced it; epoch "": there is none */
    bool has_view;                    /* the home has answered since this node began to look */
    char highest[RDZV_EPOCH_MAX + 1]; /* highest epoch that this node has seen or been told of; "": none */
    char dialled[RDZV_EPOCH_MAX + 1]; /* "": none */
    char acked[RDZV_EPOCH_MAX + 1];   /* newest epoch whose leader has acknowledged this node */
    int64_t acked_at;                 /* its newest request that was, as of the last AWAY */
    bool was_member;                  /* this node had seen an epoch before the present claim */
    bool above;                       /* our claim must be above an epoch whose leader may still acknowledge nodes */
    int64_t full_ms;                  /* D, or away_ms if that is longer; silence and kill */
    bool refused;                     /* the leader that we dial had acknowledged us, and refuses us now */
    bool asking;                      /* a LOOK is under way */
    bool last;                        /* the claim in the home is one that we released */
    int rank;                         /* -1: not known */
    int64_t since;                    /* since when the view has not changed; 0: not known */
    int64_t seen_at;                  /* when the view was read */
    int64_t claim_at;                 /* when we claim; 0: not allowed yet */
    int64_t not_before;               /* no claim is made before */
    int64_t next_look, next_renewal;
    int64_t until;                /* until then we may acknowledge; 0: we do not lead */
    int64_t sent, away_ms;        /* the newest renewal that was confirmed: when it was sent, its away_ms */
    bool enough;                  /* MIN nodes were heard at the newest renewal */
    int64_t grace_ms, hold_until; /* hold_until: nothing is decided before; 0: no hold */
    int64_t handed_ms;            /* part of hold_until that we took over from the release that our claim replaced */
    int64_t owed_until;           /* until then nobody may be given up; a release hands this on */
    /* until then too few nodes are no reason to release: those of the log have been heard by then, or given up */
    int64_t few_from;
    int64_t few_since; /* 0: MIN nodes are heard */
};

void election_init(struct election *x, const struct election_options *o);

/* Apply one event. Afterwards x->fx holds the effects, in order. */
void election_step(struct election *x, const struct election_event *ev, int64_t now);
int64_t election_deadline(const struct election *x); /* of the next ELECTION_TICK; INT64_MAX: never */

/* How long after a request that its leader acknowledged a node need not wait for away_ms. */
int64_t election_lately_ms(const struct election_options *o);

/* silence_ms + kill_ms, plus before_ms ahead of them, plus one hundredth for clocks that differ. */
int64_t election_fence_ms(const struct election_options *o, int64_t before_ms);

#endif
