/* A node as a member of its job: the client of a rendezvous behind a connection. Pure: no I/O, no clock; times are
 * clock_ms() values of the caller. launcher/rendezvous/rdzv_client_tcp.c is its shell, tests/sim drives it too.
 *
 * The life of it:
 *   - join: dial, prove who we are, JOIN, then NEXT again and again, each held for a heartbeat: it answers when there
 *     is news;
 *   - NEWS_ROUND is taken only as the answer to a NEXT that was asked after JOIN, and while that asking is younger than
 *     the lease.
 * What goes wrong, and what is done:
 *   - the connection is lost, or an answer does not come: it is given up with a reset, and dialled again with growing
 *     pauses. The new one begins with what was claimed last (JOIN, FAIL, DONE, LEAVE), else with NEXT and the newest
 *     sequence number;
 *   - nothing heard until the lease (lease.h) is over, or refused as unknown: CLIENT_FENCE, then nothing is sent until
 *     join;
 *   - the process was stopped: every step looks at the clock before anything else;
 *   - the rendezvous has lost its memory of the job, or another one is there: CLIENT_FENCE, and the JOIN that follows
 *     brings what this node knows of the job (struct rdzv_past);
 *   - refused for good, or out of reach for connect_ms with no workers running: CLIENT_FAILED.
 *
 * Where the leader is elected (options.elected) its address is found by others (election.h): the client asks for it
 * with CLIENT_SEEK whenever it has none that answers, and gets it with CLIENT_ADDRESS. The first words on each
 * connection then name the job, the epoch that is dialled and the highest that this node has seen: whoever else listens
 * there refuses.
 *
 * With a list of hosts (options.listed) it is the same, but that no epoch is named, and hosts.h says whom to dial. A
 * host that hears too few seats acknowledges nothing: its answers to JOIN and NEXT say so. Each JOIN and NEXT says how
 * many answers to them have come on this connection. */
#ifndef CRUN_COMMON_RDZV_CLIENT_H
#define CRUN_COMMON_RDZV_CLIENT_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/buf.h"
#include "common/base/choice.h"
#include "common/rdzv/client/lease.h"
#include "common/rdzv/homes/rdzv_home.h"
#include "common/rdzv/leader/presence.h"
#include "common/rdzv/machine/rdzv.h"

#define CLIENT_PROGRESS_MS 1000
#define CLIENT_ASKED_MAX 32 /* requests without an answer; more: the peer has stopped answering */
#define CLIENT_EFFECTS_MAX 32
#define CLIENT_TEXT_MAX 1023
#define CLIENT_WHERE_MAX 399

/* What this node is to the rendezvous. */
#define CLIENT_MODES(X)                                                                                                \
    X(CLIENT_NEW, "new")         /* before the first join */                                                           \
    X(CLIENT_JOINING, "joining") /* no workers; wants a round, or waits as a spare */                                  \
    X(CLIENT_RUNNING, "running") /* has a round; workers may be there */                                               \
    X(CLIENT_DONE, "done")       /* all workers exited 0 */                                                            \
    X(CLIENT_FENCED, "fenced")   /* workers are being killed; nothing is sent until join */                            \
    X(CLIENT_OVER, "over")       /* END or a failure was reported */

enum client_mode { CLIENT_MODES(CHOICE_ID) };

/* What a node knows of its job. Each JOIN carries it, for the leader may have lost its memory, or be another one. */
struct rdzv_past {
    char instance[RDZV_INSTANCE_MAX + 1]; /* "": no job yet */
    uint64_t round;                       /* the newest round that this node heard of, as a member or not */
    int restarts;                         /* restarts used up so far; one more if this node's workers were fenced */
};

static inline void rdzv_past_heard(struct rdzv_past *p, const struct rdzv_news *news)
{
    if (news->kind == RDZV_NEWS_END)
        return;
    p->round = news->round > p->round ? news->round : p->round;
    p->restarts = news->restart_count;
}

/* What this node knows while it waits for a round. Reported once a second at most. */
struct rdzv_progress {
    struct presence now;
    /* set instead of all the fields above: why the rendezvous cannot be reached ("cannot reach 10.0.0.5:29400:
     * ..."), or "" */
    char text[256];
    int64_t for_ms;  /* with `text`: ms since this has been so */
    int64_t left_ms; /* with `text`: ms until this node gives up; <= 0: not known */
    int error;       /* with `text`: -errno of the newest dial; 0: it was answered, or none was made */
};

struct client_options { /* strings are borrowed */
    struct rdzv_config job;
    int64_t heartbeat_ms, connect_ms, grace_ms; /* as struct rdzv_client_options; grace_ms 0: no exception */
    const char *run_id, *node;
    const char *endpoint; /* the rendezvous as the user named it, for people */
    /* appended to the message that a secret was refused: what the user can do; NULL: nothing */
    const char *secret_help;
    bool elected;     /* its address comes by CLIENT_ADDRESS */
    int64_t valid_ms; /* elected: D of its claims; 0: ELECTION_D_MS */
    bool listed;      /* the rendezvous is a list of hosts; elected is set, too */
    bool shows_progress;
    unsigned seed; /* of the pauses' jitter */
};

enum client_ask {
    ASK_TERM,
    ASK_JOIN,
    ASK_NEXT,
    ASK_FAIL,
    ASK_DONE,
    ASK_LEAVE,
    ASK_REPORT,
    ASK_POSTMORTEM,
    ASK_STATUS,
    ASK_ANSWER,
};

struct client_asked {
    enum client_ask what;
    int64_t at;   /* when it was sent */
    int64_t due;  /* when its answer is overdue */
    bool joining; /* sent after join */
};

/* --- effects, in order; the shell takes each and carries it out before the next */

enum client_effect_kind {
    CLIENT_DIAL, /* within ms */
    /* close the connection and stop dialling, with a reset: nothing that was sent on it counts. ms 1: who accepted it
     * proved nothing, or leaves a request unanswered; of several addresses another one comes first now */
    CLIENT_HANG_UP,
    CLIENT_SEND,     /* request */
    CLIENT_TELL,     /* news, and with them members, NULL: none */
    CLIENT_FENCE,    /* kill the workers now, then join; text: why; "": the failure that follows says why */
    CLIENT_FAILED,   /* this node cannot take part: code, text */
    CLIENT_LEASE,    /* workers may run until ms; 0: none run */
    CLIENT_PROGRESS, /* progress */
    /* ask the bootstrap store whether the round goes on without its daemon: ms 1: begin; 0: stop asking */
    CLIENT_ALIVE,
    CLIENT_SEEK,  /* elected: the known address of the leader does not answer; ms 1: it refused the connection */
    CLIENT_ASKED, /* the rendezvous asks this node something: text, a record */
    /* elected: the leader of the epoch dialled has acknowledged this node (once); listed: on every acknowledgement */
    CLIENT_ACKED,
    CLIENT_WARN, /* log text */
    CLIENT_NOTE, /* log text, which is of less interest */
};

struct client_effect {
    enum client_effect_kind kind;
    enum client_ask what; /* SEND: this and the following */
    uint64_t seq;         /* NEXT; ANSWER: the number of the question */
    int from;             /* NEXT: the page of addresses that begins with this group rank; 0: the first */
    bool together;        /* sent together with the next request */
    uint64_t got;         /* JOIN, NEXT: number of answers to them that arrived on this connection */
    int64_t ms;
    int code;
    struct rdzv_news news;
    char *members; /* freed by client_done() */
    union {
        char text[CLIENT_TEXT_MAX + 1];
        struct rdzv_progress progress;
    };
};

/* --- events */

enum client_event_kind {
    CLIENT_JOIN,    /* this node is ready for the next round: none of its workers is left */
    CLIENT_FAIL,    /* cause */
    CLIENT_FINISH,  /* all workers exited 0 */
    CLIENT_LEAVE,   /* cause, NULL: in good order */
    CLIENT_REPORT,  /* text: for status pages */
    CLIENT_PUBLISH, /* text: the failure report of the job that has ended */
    CLIENT_ANSWER,  /* text, to question id */
    CLIENT_DIRECT,  /* elected, before all else: nobody is elected, text are several addresses for good (of daemons) */
    CLIENT_ADDRESS, /* text: address of the leader of `epoch`, for people; `seen` is set, too */
    /* text: why no leader can be found now; "": nothing is wrong. error: exit code, if none will ever be found */
    CLIENT_TROUBLE,
    CLIENT_DIALLED,      /* error: 0, or -errno with text */
    CLIENT_READY,        /* the connection is proved */
    CLIENT_LOST,         /* how, text */
    CLIENT_REPLY,        /* reply */
    CLIENT_MAJORITY,     /* at `at`, the bootstrap store said that the round goes on without its daemon */
    CLIENT_STORE_FAILED, /* the bootstrap store could not be opened: error; the JOIN is not sent */
    CLIENT_TICK,
};

enum client_reply_kind { REPLY_STATUS, REPLY_RECORD, REPLY_NIL, REPLY_ERROR, REPLY_OTHER };

struct client_reply {
    enum client_reply_kind kind;
    const char *text; /* borrowed, NUL-terminated */
    size_t len;
};

/* Why a connection is of no use. */
enum rdzv_lost {
    RDZV_LOST,     /* closed, reset, malformed: try again */
    RDZV_STRANGER, /* the peer speaks another protocol: the rendezvous may come up there later */
    RDZV_DENIED,   /* one of us does not accept the other's proof, or its certificate: trying again will not help */
};

struct client_event {
    enum client_event_kind kind;
    const struct rdzv_cause *cause;
    const char *text, *epoch, *seen;
    uint64_t id; /* ANSWER */
    int error;
    enum rdzv_lost how;
    struct client_reply reply;
    int64_t at;
    int64_t still_ms; /* ms of the lease during which this process was stopped; any event may carry it, for messages */
};

struct client {
    struct client_options o;
    struct rdzv_past past;
    struct client_effect fx[CLIENT_EFFECTS_MAX]; /* a ring */
    unsigned fx_first, fx_last;
    int64_t still_ms;

    /* the connection */
    char where[CLIENT_WHERE_MAX + 1]; /* the server, for people */
    char left[128];                   /* listed: the host that this node was at before; "": at none, or at this one */
    bool dialling, connected;
    bool up; /* proved; requests may be sent */
    int64_t dial_begun;
    bool several;      /* addresses are dialled, one of which leads */
    unsigned unproved; /* connections that came to nothing before they were proved, since the newest acknowledgement */
    int64_t greet_due; /* deadline for the connection to be proved */
    int64_t away;      /* since when the rendezvous cannot be reached; 0: it can */
    int64_t pause_ms;  /* before the next dial */
    int64_t retry_at;  /* INT64_MAX: no retry is due */
    unsigned rng;
    char why[512];       /* why it cannot be reached */
    int error;           /* of the newest dial, -errno */
    bool stranger;       /* another program answers there */
    bool homeless;       /* elected: `why` tells what is wrong with the home; that explains all other failures */
    int64_t progress_at; /* time of the last progress report */
    struct client_asked asked[CLIENT_ASKED_MAX];
    unsigned asked_first, asked_last;
    bool next_open;                      /* a NEXT has no answer yet */
    uint64_t got;                        /* number of answers to JOIN and NEXT on this connection */
    struct buf report;                   /* sent together with the next NEXT; empty: no report waits */
    struct buf sent, postmortem, answer; /* text of the REPORT, the POSTMORTEM and the ANSWER that are under way */
    uint64_t answered;                   /* number of that question */
    char epoch[RDZV_EPOCH_MAX + 1], seen[RDZV_EPOCH_MAX + 1]; /* elected: dialled, "": none; highest seen */
    char denied[RDZV_EPOCH_MAX + 1]; /* elected: the epoch whose leader refused our proof, or gave a wrong one */
    int64_t denied_since;
    /* on this connection: the epoch was sent; the leader acknowledged us, and CLIENT_ACKED was reported */
    bool named, acked;

    /* what was announced and claimed */
    enum client_mode mode;
    bool join_sent;        /* ever */
    bool joined;           /* the JOIN of this joining is acknowledged */
    uint64_t joined_round; /* the round that it named */
    bool failing;          /* FAIL is to be sent again on a new connection */
    struct rdzv_cause cause, why_leaving;
    bool leaving, parting; /* LEAVE was sent; it was sent while workers ran, so JOIN must follow */
    uint64_t seq, round;
    struct buf members;   /* addresses of the members: the pages that have arrived so far */
    uint64_t members_seq; /* number of the news that they belong to */
    int members_from;     /* group rank at which the next page begins; 0: no page is awaited */
    struct lease lease;
    bool alive_on;
};

void client_init(struct client *c, const struct client_options *o);
void client_finish(struct client *c);

/* Apply one event at `now`; effects wait in c. May be called while an effect is carried out. */
void client_step(struct client *c, const struct client_event *ev, int64_t now);

/* The next effect, valid until client_done(), which must follow. NULL: none is left. */
struct client_effect *client_effect(struct client *c);
void client_done(struct client *c);

/* When the next CLIENT_TICK is due; INT64_MAX: never. */
int64_t client_deadline(const struct client *c);

/* How long the other side may hold back the answer to a NEXT that is sent now. */
int64_t client_hold_ms(const struct client *c);
/* Fill in JOIN, FAIL, DONE or LEAVE as they must be sent now; the shell adds the facts of this node (addresses,
 * slots). */
void client_claim(const struct client *c, enum client_ask what, struct rdzv_event *ret);
bool client_is_answered(const struct client *c); /* every request was, or never will be */

#endif
