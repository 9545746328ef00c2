/* The claim of a daemon on the state that it shares with others, and what follows from it. See standby.h. */
#include "rendezvousd/daemon/standby.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/container_of.h"
#include "common/base/dice.h"
#include "common/base/err.h"
#include "common/base/log.h"
#include "common/net/dial.h"
#include "common/rdzv/client/election.h"
#include "common/rdzv/homes/home_process.h"
#include "common/rdzv/leader/keeper.h"
#include "rendezvousd/jobs/jobs.h"
#include "rendezvousd/state/state_shared.h"

#define MODULE "standby"
#define EVENTS_MAX 32
#define IO_MS 2000          /* of one call to the home */
#define PATIENCE_MS 3000    /* a decision is tried for so long */
#define KEEP_MS 3600000     /* what nobody has led for so long may be removed */
#define PROBE_MS 200        /* between two dials of the leader */
#define PROBE_PATIENCE 1000 /* ms for one */
#define LIKE_NODES 4000     /* it looks at the claim as rarely as a node of so many: every 225 ms */

struct probe { /* on a thread of libuv */
    uv_work_t work;
    struct standby *s;
    char host[RDZV_ADDRS_MAX + 1], port[8], epoch[RDZV_EPOCH_MAX + 1];
    int rc;
};

struct standby {
    struct standby_options o;
    uv_loop_t *loop;
    struct keeper *keeper;
    struct state_shared *log;
    struct jobs *jobs;
    struct election x;
    struct election_event events[EVENTS_MAX]; /* to come */
    unsigned first, last;
    bool pumping, closing, leaving, told;
    bool writes;   /* decisions go to the home */
    bool had_term; /* jobs were loaded */
    bool unable;   /* a decision could not be written */
    bool complained;
    char identity[RDZV_IDENTITY_MAX + 1];
    struct server_standby notice;
    int process_fd; /* touches a folder for us; 0: none */
    uv_timer_t clock, probing;
    bool probes; /* one is under way */
    int holders; /* handles, and a probe that is under way when the handles are closed */
};

static void pump(struct standby *s);
static void on_clock(uv_timer_t *t);

static void push(struct standby *s, struct election_event ev)
{
    if (s->last - s->first < EVENTS_MAX)
        s->events[s->last++ % EVENTS_MAX] = ev;
    pump(s);
}

/* --- what others are told */

/* A claim's node is "HOST:PORT/STATE": who first claims a state names it, and all later ones take the name over. A
 * state that was emptied is another one, whatever this daemon has seen of it before. */
static void take_state(struct standby *s)
{
    const char *slash = strrchr(s->x.view.node, '/');
    if (slash)
        snprintf(s->notice.state, sizeof s->notice.state, "%s", slash + 1);
    else
        snprintf(s->notice.state, sizeof s->notice.state, "%016" PRIx64, dice_roll(&s->x.rng));
    snprintf(s->x.own.node, sizeof s->x.own.node, "%s%s%s:%d/%s", strchr(s->o.advertise, ':') ? "[" : "",
             s->o.advertise, strchr(s->o.advertise, ':') ? "]" : "", s->x.own.port, s->notice.state);
}

/* Who leads, as far as the newest claim tells. */
static void note_leader(struct standby *s)
{
    const struct rdzv_claim *c = &s->x.view;
    const bool known = c->epoch[0] && !c->released;
    snprintf(s->notice.leader, sizeof s->notice.leader, "%.*s", known ? (int)strcspn(c->node, "/") : 0, c->node);
    if (known && strchr(c->node, '/'))
        snprintf(s->notice.state, sizeof s->notice.state, "%s", strrchr(c->node, '/') + 1);
}

/* --- the log of jobs */

static int on_write(void *arg, const struct buf *text, bool whole, uint64_t number)
{
    struct standby *s = arg;
    const struct rdzv_write w = {.decision = text, .epoch = s->x.own.epoch, .whole = whole};
    return s->writes ? keeper_append(s->keeper, &w, number) : 0;
}

static void on_unable(void *arg)
{
    struct standby *s = arg;
    s->unable = true;
    uv_timer_start(&s->clock, on_clock, 0, 0);
}

static void on_appended(struct standby *s, const struct keeper_answer *a)
{
    if (s->x.state != ELECTION_LEADING || strcmp(a->claim.epoch, s->x.own.epoch) != 0)
        return;
    if (a->rc == 1) {
        state_shared_stands(s->log, a->number);
        return;
    }
    keeper_end_term(s->keeper);
    log_error(MODULE, "the state takes no decision of this daemon: %s",
              a->rc < 0 ? a->e.text : "another one has claimed it");
    push(s, (struct election_event){.kind = a->rc < 0 ? ELECTION_UNABLE : ELECTION_RENEWED, .rc = 0});
}

/* --- leading */

static int take_over(struct standby *s, struct keeper_answer *a, struct err *e)
{
    s->had_term = s->writes = true;
    return jobs_take_over(s->jobs,
                          &(struct jobs_taken){.epoch = rdzv_epoch_number(s->x.own.epoch),
                                               .identity = s->identity,
                                               .text = a->text.len ? a->text.data : "",
                                               .n = a->text.len,
                                               .grace_ms = s->x.grace_ms,
                                               .valid_ms = s->x.o.valid_ms},
                          e);
}

static void on_loaded(struct standby *s, struct keeper_answer *a)
{
    struct err e = {0};
    if (s->x.state != ELECTION_LOADING)
        return;
    const int rc = a->rc < 0 ? a->rc : take_over(s, a, &e);
    if (a->rc < 0)
        log_warn(MODULE, "this daemon cannot lead, the state is out of reach: %s", a->e.text);
    else if (a->e.code == -ESTALE)
        log_warn(MODULE, "%s", a->e.text);
    push(s, (struct election_event){.kind = ELECTION_LOADED, .rc = rc < 0 ? rc : 1});
    if (a->rc >= 0 && rc < 0)
        s->o.lost(s->o.arg, &e);
    else if (rc == 0 && s->x.state == ELECTION_LEADING) {
        log_warn(MODULE, "this daemon leads, epoch %s", s->x.own.epoch);
        note_leader(s);
        s->o.leads(s->o.arg);
    }
}

static void resign(struct standby *s)
{
    if (s->had_term)
        jobs_stand_down(s->jobs); /* which writes how old they are, if that is ours to write */
    s->writes = false;
    s->notice.leader[0] = 0;
    if (s->x.state != ELECTION_RELEASING)
        keeper_end_term(s->keeper);
}

/* --- is the leader's process there? */

static void release(struct standby *s)
{
    if (--s->holders > 0)
        return;
    state_shared_destroy(s->log);
    free(s);
}

static void on_probe(uv_work_t *w)
{
    struct probe *p = container_of(w, struct probe, work);
    struct err e;
    int fd;
    p->rc = dial(p->host, p->port, clock_deadline(PROBE_PATIENCE), -1, &fd, &e);
    if (p->rc >= 0)
        close(fd);
}

static void on_probed(uv_work_t *w, int status)
{
    struct probe *p = container_of(w, struct probe, work);
    struct standby *s = p->s;
    const bool ours = status == 0 && !s->closing && strcmp(p->epoch, s->x.dialled) == 0;
    const bool refused = p->rc == -ECONNREFUSED;
    const bool known = strcmp(s->x.acked, p->epoch) == 0;
    const int rc = p->rc;
    free(p);
    s->probes = false;
    if (s->closing)
        release(s);
    if (!ours || s->x.state != ELECTION_LOOKING)
        return;
    if (rc >= 0 && !known) {
        log_info(MODULE, "standing by: %s leads, epoch %s", s->notice.leader, s->x.dialled);
        push(s, (struct election_event){.kind = ELECTION_ACKED});
    }
    if (refused != s->x.refused || (rc >= 0 && !known))
        push(s, (struct election_event){.kind = ELECTION_AWAY, .refused = refused});
}

static void on_probing(uv_timer_t *t)
{
    struct standby *s = container_of(t, struct standby, probing);
    const struct rdzv_claim *c = &s->x.view;
    if (s->probes || s->x.state != ELECTION_LOOKING || !c->epoch[0] || strcmp(c->epoch, s->x.dialled) != 0)
        return;
    struct probe *p = calloc(1, sizeof *p);
    if (!p)
        return; /* the next one will do */
    p->s = s;
    snprintf(p->host, sizeof p->host, "%s", c->addrs);
    snprintf(p->port, sizeof p->port, "%d", c->port);
    snprintf(p->epoch, sizeof p->epoch, "%s", c->epoch);
    s->probes = uv_queue_work(s->loop, &p->work, on_probe, on_probed) == 0;
    if (!s->probes)
        free(p);
}

/* --- the home's answers */

/* Said once, until the home has answered again. */
static void complain(struct standby *s, const struct keeper_answer *a)
{
    if (a->rc < 0 && !s->complained)
        log_warn(MODULE, "the state is out of reach: %s", a->e.text);
    s->complained = a->rc < 0;
}

static void on_answer(void *arg, struct keeper_answer *a)
{
    struct standby *s = arg;
    struct election_event ev = {.rc = a->rc, .sent = a->sent, .claim = &a->claim};
    switch (a->call) {
    case KEEPER_LOOK:
        complain(s, a);
        ev.kind = ELECTION_SEEN;
        push(s, ev);
        note_leader(s);
        break;
    case KEEPER_CLAIM:
        complain(s, a);
        memcpy(s->identity, a->identity, sizeof s->identity);
        ev.kind = ELECTION_CLAIMED;
        push(s, ev);
        break;
    case KEEPER_LOAD:
        on_loaded(s, a);
        break;
    case KEEPER_RENEW:
        complain(s, a);
        ev.kind = ELECTION_RENEWED;
        push(s, ev);
        break;
    case KEEPER_APPEND:
        on_appended(s, a);
        break;
    case KEEPER_RELEASE:
        push(s, (struct election_event){.kind = ELECTION_RELEASED});
        break;
    case KEEPER_FORGET:
        break;
    }
}

/* --- the election */

static void carry_out(struct standby *s, enum election_effect_kind fx)
{
    switch (fx) {
    case ELECTION_LOOK:
        keeper_look(s->keeper);
        break;
    case ELECTION_CLAIM:
        take_state(s);
        keeper_claim(s->keeper, &s->x.view, &s->x.own);
        break;
    case ELECTION_LOAD:
        keeper_load(s->keeper);
        break;
    case ELECTION_RENEW:
        keeper_renew(s->keeper, &s->x.own);
        break;
    case ELECTION_RELEASE:
        keeper_release(s->keeper, &s->x.own);
        break;
    case ELECTION_DIAL:
        uv_timer_start(&s->probing, s->probing.timer_cb, 0, PROBE_MS);
        break;
    case ELECTION_UNTIL:
        s->notice.until = s->x.until;
        jobs_lead_until(s->jobs, s->x.until);
        break;
    case ELECTION_RESIGN:
        resign(s);
        break;
    }
}

/* Has this daemon's part come to its end? Said once. */
static void look_at_end(struct standby *s)
{
    const bool idle = s->x.state == ELECTION_IDLE || s->x.state == ELECTION_LOOKING;
    if (s->told || !idle || (!s->leaving && !s->had_term))
        return;
    s->told = true;
    if (s->leaving)
        s->o.left(s->o.arg);
    else
        s->o.lost(s->o.arg, NULL);
}

static void on_clock(uv_timer_t *t)
{
    struct standby *s = container_of(t, struct standby, clock);
    const bool unable = s->unable;
    s->unable = false;
    push(s, (struct election_event){.kind = unable ? ELECTION_UNABLE : ELECTION_TICK});
}

/* What is carried out may bring further events: they wait for the rest of the effects. */
static void pump(struct standby *s)
{
    enum election_effect_kind fx[ELECTION_EFFECTS_MAX];
    if (s->pumping || s->closing)
        return;
    s->pumping = true;
    while (s->first != s->last) {
        const struct election_event ev = s->events[s->first++ % EVENTS_MAX];
        const enum election_state before = s->x.state;
        election_step(&s->x, &ev, clock_ms());
        if (s->x.state != before)
            log_debug(MODULE, "%s -> %s", election_state_name(before), election_state_name(s->x.state));
        const int n = s->x.fx_count;
        memcpy(fx, s->x.fx, sizeof fx);
        for (int i = 0; i < n; i++)
            carry_out(s, fx[i]);
    }
    s->pumping = false;
    const int64_t due = election_deadline(&s->x), now = clock_ms();
    if (due == INT64_MAX && !s->unable) {
        uv_timer_stop(&s->clock);
    } else {
        uv_update_time(s->loop);
        uv_timer_start(&s->clock, on_clock, s->unable || due <= now ? 0 : (uint64_t)(due - now), 0);
    }
    look_at_end(s);
}

/* --- life */

/* A folder that is not there may come. */
static int check_folder(const char *path, struct err *e)
{
    struct stat st;
    char jobs[4096 + 8], epoch[4096 + 8];
    snprintf(jobs, sizeof jobs, "%s/jobs", path);
    snprintf(epoch, sizeof epoch, "%s/epoch", path);
    if (stat(path, &st) == 0 && !S_ISDIR(st.st_mode))
        return err_set(e, ERR_USAGE, "--state '%s': expected a folder", path);
    if (access(jobs, F_OK) < 0 || access(epoch, F_OK) < 0)
        return 0;
    return err_set(e, ERR_USAGE,
                   "'%s' is the folder of one daemon alone (it has jobs/ and epoch): expected one that daemons share; "
                   "give it as --state-dir, or another --state",
                   path);
}

static int open_home(struct standby *s, struct err *e)
{
    const bool path = s->o.state[0] == '/', folder = path || strncmp(s->o.state, "file://", 7) == 0;
    struct rdzv_home *home;
    char url[4096 + 8];
    pid_t pid;
    if (folder)
        TRY(check_folder(s->o.state + (path ? 0 : strlen("file://")), e));
    snprintf(url, sizeof url, "%s%s", path ? "file://" : "", s->o.state);
    s->process_fd = folder ? home_process_start(home_serve_folder, "rendezvousd-log", &pid) : 0;
    if (s->process_fd < 0)
        return err_start(e, -s->process_fd, "the process for the folder '%s'", s->o.state);
    const struct rdzv_home_options o = {
        .run_id = STANDBY_RUN, .io_timeout_ms = IO_MS, .keep_ms = KEEP_MS, .process_fd = s->process_fd};
    TRY(rdzv_home_open(&home, url, &o, e));
    struct rdzv_claim own = {0};
    snprintf(own.addrs, sizeof own.addrs, "%s", s->o.advertise);
    election_init(&s->x, &(struct election_options){
                             .valid_ms = home->ops->valid_ms, .nodes = LIKE_NODES, .seed = dice_seed(), .own = &own});
    return keeper_open(&s->keeper, s->loop, home, PATIENCE_MS, on_answer, s, e);
}

int standby_open(struct standby **ret, uv_loop_t *loop, const struct standby_options *o, struct err *e)
{
    struct standby *s = calloc(1, sizeof *s);
    if (!s)
        return err_set(e, -ENOMEM, "no memory for a daemon that stands by");
    s->o = *o;
    s->loop = loop;
    int rc = state_shared_create(&s->log,
                                 &(struct state_shared_options){.write = on_write, .unable = on_unable, .arg = s}, e);
    rc = rc ? rc : open_home(s, e);
    if (rc < 0) {
        state_shared_destroy(s->log);
        free(s);
        return rc;
    }
    uv_timer_init(loop, &s->clock);
    uv_timer_init(loop, &s->probing);
    s->holders = 2;
    *ret = s;
    return 0;
}

void standby_begin(struct standby *s, struct jobs *jobs, int port)
{
    s->jobs = jobs;
    s->x.own.port = port;
    uv_timer_start(&s->probing, on_probing, PROBE_MS, PROBE_MS);
    push(s, (struct election_event){.kind = ELECTION_RANK, .rank = 0});
    push(s, (struct election_event){.kind = ELECTION_BEGIN});
}

struct state_shared *standby_log(struct standby *s)
{
    return s->log;
}

const struct server_standby *standby_notice(const struct standby *s)
{
    return &s->notice;
}

bool standby_is_leading(const struct standby *s)
{
    return s->x.state == ELECTION_LEADING;
}

void standby_leave(struct standby *s)
{
    s->leaving = true;
    push(s, (struct election_event){.kind = ELECTION_LEAVE});
}

static void on_closed(uv_handle_t *h)
{
    release(h->data);
}

void standby_close(struct standby *s)
{
    if (!s)
        return;
    s->closing = true;
    s->writes = false;
    s->holders += s->probes;
    keeper_close(s->keeper); /* whose thread may use process_fd until this process ends */
    s->clock.data = s->probing.data = s;
    uv_close((uv_handle_t *)&s->clock, on_closed);
    uv_close((uv_handle_t *)&s->probing, on_closed);
}
