/* NCCL's RAS as a witness (witness.h): gives it signs of life, asks it, and exchanges both with the job's other nodes.
 *
 * Group rank 0's node asks its own workers, whose RAS knows the ranks of all nodes. The other nodes report
 * (RDZV.QUIET) since when no worker of theirs has read or written a byte, when each gave its last sign of life, and
 * its process ids. The answer says which of their ranks are named. */
#include "launcher/hang/hang_watch_internal.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/array.h"
#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/base/container_of.h"
#include "common/base/err.h"
#include "common/base/log.h"
#include "common/base/numbers.h"
#include "launcher/guard/procs.h"
#include "launcher/hang/gather.h"
#include "launcher/hang/ras_question.h"
#include "launcher/hang/signs.h"
#include "launcher/output/logmux.h"
#include "launcher/witness/ras_addr.h"
#include "launcher/witness/witness.h"

#define LOOKS 12 /* looks within the time without signs */
#define LOOK_MIN_NS INT64_C(50000000)
#define LOOK_MAX_NS INT64_C(5000000000)
#define LATE_TELL_NS INT64_C(3000000000)
#define TELLS "IO "      /* beginning of a node's report */
#define NAMES "LATE "    /* an answer: followed by the node's ranks that are named, "-": none, "*": all */
#define PROCESSES_MAX 16 /* of a worker, with itself */

struct hang_witness {
    struct witness m; /* on group rank 0 */
    struct hang_watch *watch;
    uv_timer_t timer;
    struct gather *question; /* the one under way, NULL: none */
    int base, world;         /* world 0: no round */
    int answers;             /* the worker whose RAS answered last, which is asked first */
    bool leads, said;        /* something about this round's RAS, for people */
    struct local {           /* (n) workers of this node */
        struct quiet_mark mark;
        uint64_t bytes;
        bool late; /* on other nodes than group rank 0: group rank 0 named this worker */
    } * local;
    bool any_late;
    int64_t active_ns, looked_ns; /* of this node */
    uint64_t changes;             /* of keys */
    int64_t *lived_ns;            /* (world), or (n) elsewhere */
    struct remote {               /* on group rank 0: an array of world entries, used for ranks of other nodes */
        int64_t active_ns, heard_ns;
    } * remote;
    struct ras_job job;
};

static int64_t look_ns(const struct hang_witness *t)
{
    return max_i64(LOOK_MIN_NS, min_i64(t->m.quiet_ns / LOOKS, LOOK_MAX_NS));
}

static int64_t *own_lived(struct hang_witness *t)
{
    return t->lived_ns + (t->leads ? t->base : 0);
}

static bool is_own(const struct hang_witness *t, int rank)
{
    return rank >= t->base && rank < t->base + t->watch->n;
}

static void excuse(struct hang_witness *t, int64_t now)
{
    t->active_ns = now;
    for (int i = 0; i < t->watch->n; i++)
        own_lived(t)[i] = now;
}

/* --- signs */

static void take_signs(struct hang_witness *t, int64_t now)
{
    struct hang_watch *w = t->watch;
    const uint64_t changes = t->leads ? w->o.store_changes(w->o.arg) : 0;
    if (changes != t->changes)
        t->active_ns = now;
    t->changes = changes;
    for (int i = 0; i < w->n; i++) {
        struct quiet_sample s;
        if (w->workers[i].gone || !signs_read(w->workers[i].pid, &s))
            continue;
        if (quiet_is_sign(&t->local[i].mark, now, &s))
            own_lived(t)[i] = now;
        if (s.bytes != t->local[i].bytes)
            t->active_ns = now;
        t->local[i].bytes = s.bytes;
    }
}

/* --- processes */

static void add_process(struct ras_job *j, pid_t pid, int rank, int node)
{
    if (ARRAY_RESERVE(j->processes, j->processes_cap, j->n_processes + 1) == 0)
        j->processes[j->n_processes++] = (struct ras_process){pid, rank, node};
}

/* hosts: "10.0.0.7,fd00::1"; "-": none. */
static void add_places(struct ras_job *j, const char *hosts, int node)
{
    for (size_t n; *hosts; hosts += n + (hosts[n] == ',')) {
        struct ras_place p = {.node = node};
        n = strcspn(hosts, ",");
        if (n < sizeof p.host && ARRAY_RESERVE(j->places, j->places_cap, j->n_places + 1) == 0) {
            memcpy(p.host, hosts, n);
            j->places[j->n_places++] = p;
        }
    }
}

static void forget_node(struct ras_job *j, int node)
{
    size_t processes = 0, places = 0;
    for (size_t i = 0; i < j->n_processes; i++)
        if (j->processes[i].node != node)
            j->processes[processes++] = j->processes[i];
    for (size_t i = 0; i < j->n_places; i++)
        if (j->places[i].node != node)
            j->places[places++] = j->places[i];
    j->n_processes = processes;
    j->n_places = places;
}

static void add_tree(struct hang_witness *t, const struct hang_worker *k)
{
    struct procs below;
    add_process(&t->job, k->pid, k->rank, t->base);
    if (procs_below(&below, k->pid))
        for (size_t i = 0; i < below.n && i + 1 < PROCESSES_MAX; i++)
            add_process(&t->job, below.v[i].pid, k->rank, t->base);
    procs_free(&below);
}

static void add_own(struct hang_witness *t)
{
    char hosts[RAS_HOSTS_MAX];
    forget_node(&t->job, t->base);
    add_places(&t->job, ras_hosts(hosts), t->base);
    for (int i = 0; i < t->watch->n; i++)
        if (!t->watch->workers[i].gone)
            add_tree(t, &t->watch->workers[i]);
}

/* --- questions */

static void show_stacks(struct hang_watch *w)
{
    const char *why = w->witness->leads ? w->witness->m.verdict.text : "others wait for a rank of this node";
    for (int i = 0; i < w->n && !w->save; i++)
        if (hang_witness_names(w, w->workers[i].rank))
            hang_save_stacks(w, w->workers[i].rank, why, false);
    if (w->n && !w->save)
        hang_save_stacks(w, w->workers[0].rank, why, false);
}

static void say_once(struct hang_witness *t, const char *text)
{
    if (!t->said)
        logmux_print(t->watch->o.mux, "NCCL's RAS is no witness here: %s. Signs of life alone decide", text);
    t->said = true;
}

static void act(struct hang_witness *t, enum witness_act what);

static void end_question(struct hang_witness *t)
{
    gather_drop(t->question);
    t->question = NULL;
}

static void on_asked(void *arg)
{
    struct hang_witness *t = arg;
    struct gather *g = t->question;
    const char *why;
    struct ras_question *q = ras_question_result(g, &why);
    char old[80];
    t->question = NULL;
    if (q->answer.version == 0) {
        witness_miss(&t->m, clock_ns(), q->too_old);
        say_once(t, why);
    } else {
        struct ras_answer a = q->answer;
        const bool is_old = a.version < RAS_LEAST_VERSION;
        q->answer = (struct ras_answer){0};
        t->answers = (t->answers + q->asked) % t->watch->n;
        snprintf(old, sizeof old, "NCCL %s; from 2.29.2 on it is asked", a.version_text);
        act(t, witness_hear(&t->m, clock_ns(), &a, t->lived_ns));
        if (is_old)
            say_once(t, old);
    }
    gather_drop(g);
}

/* The addresses of this node's workers, the one that answered last first: one text, which the caller frees. */
static char *addresses(const struct hang_witness *t)
{
    struct buf text = {0};
    char address[RAS_ADDRESS_MAX];
    const char *typed = getenv(RAS_VARIABLE);
    int rc = typed ? buf_addstr(&text, typed) : 0;
    for (int k = 0; !typed && k < t->watch->n && rc == 0; k++) {
        const int i = (t->answers + k) % t->watch->n;
        if (!t->watch->workers[i].gone)
            rc = buf_printf(&text, "%s ", ras_address(getpid(), i, address));
    }
    return rc == 0 ? text.data : NULL;
}

static void ask(struct hang_witness *t)
{
    const struct gather_options o = {.loop = t->watch->o.loop, .threads = 1, .done = on_asked, .arg = t};
    add_own(t);
    end_question(t);
    t->question = ras_question_start(addresses(t), &t->job, &o);
    if (!t->question)
        witness_miss(&t->m, clock_ns(), false);
}

static void on_named(struct hang_witness *t)
{
    struct hang_watch *w = t->watch;
    const int64_t last = hang_witness_last(w);
    if (last > 0 && w->quiet.sign_ns > last)
        w->quiet.sign_ns = last; /* for --hang-timeout */
    logmux_print(w->o.mux, "%s; no sign of life for %.0f s", t->m.verdict.text, (double)(clock_ns() - last) / 1e9);
    show_stacks(w);
}

static void act(struct hang_witness *t, enum witness_act what)
{
    switch (what) {
    case WITNESS_ASK:
        ask(t);
        break;
    case WITNESS_NAME:
        on_named(t);
        break;
    case WITNESS_BUSY:
        log_info("witness", "%s, and is busy", t->m.verdict.text);
        break;
    case WITNESS_FREE:
        logmux_print(t->watch->o.mux, "rank %d, for which others waited, goes on", t->m.verdict.first);
        break;
    case WITNESS_NOTHING:
        break;
    }
}

/* --- all nodes */

/* Have all ranks of other nodes been heard lately? *ret: time of the last byte or key of the job. */
static bool job_is_known(const struct hang_witness *t, int64_t now, int64_t *ret)
{
    *ret = t->active_ns;
    for (int r = 0; r < t->world; r++) {
        if (is_own(t, r))
            continue;
        const struct remote *k = &t->remote[r];
        if (k->heard_ns == 0 || now - k->heard_ns > 2 * look_ns(t) + LATE_TELL_NS)
            return false;
        *ret = max_i64(*ret, k->active_ns);
    }
    return true;
}

/* Report "IO 61000 8 10.0.0.7 300:4711+4712 61000:4713": ms without a byte, first rank, addresses of the host; then
 * for each rank ms since its last sign of life, and its processes. */
static void tell(struct hang_witness *t, int64_t now)
{
    struct buf text = {0};
    char hosts[RAS_HOSTS_MAX];
    int rc = buf_printf(&text, TELLS "%" PRId64 " %d %s", (now - t->active_ns) / 1000000, t->base, ras_hosts(hosts));
    t->job.n_processes = 0;
    for (int i = 0, n = 0; i < t->watch->n && rc == 0; i++) {
        add_tree(t, &t->watch->workers[i]);
        rc = buf_printf(&text, " %" PRId64, (now - t->lived_ns[i]) / 1000000);
        for (const int first = n; n < (int)t->job.n_processes && rc == 0; n++)
            rc = buf_printf(&text, "%c%d", n == first ? ':' : '+', (int)t->job.processes[n].pid);
    }
    if (rc == 0)
        t->watch->o.tell_quiet(t->watch->o.arg, text.data, text.len);
    buf_free(&text);
}

static bool parse_ms(const char *word, char stop, int64_t now, int64_t *ret, const char **after)
{
    char *end;
    const long long ms = word ? strtoll(word, &end, 10) : -1;
    if (ms < 0 || ms > INT64_C(30) * 86400 * 1000 || *end != stop)
        return false;
    *ret = now - ms * 1000000;
    *after = end + (stop != '\0');
    return true;
}

static bool parse_processes(struct hang_witness *t, const char *at, int rank, int node)
{
    char *end = NULL;
    for (int n = 0; n < PROCESSES_MAX; n++, at = end + 1) {
        const long pid = strtol(at, &end, 10);
        if (pid <= 0 || pid > INT32_MAX || (*end && *end != '+'))
            return false;
        add_process(&t->job, (pid_t)pid, rank, node);
        if (!*end)
            return true;
    }
    return false;
}

static bool parse_tell(struct hang_witness *t, char *text, int64_t now, int *ret_base, int *ret_n)
{
    char *save = NULL;
    const char *at;
    int64_t active, lived;
    strtok_r(text, " ", &save);
    if (!parse_ms(strtok_r(NULL, " ", &save), '\0', now, &active, &at) || !(at = strtok_r(NULL, " ", &save)))
        return false;
    char *end;
    const long base = strtol(at, &end, 10);
    if (*end || base < 0 || base >= t->world || !(at = strtok_r(NULL, " ", &save)))
        return false;
    *ret_base = (int)base;
    forget_node(&t->job, *ret_base);
    add_places(&t->job, at, *ret_base);
    for (*ret_n = 0; (at = strtok_r(NULL, " ", &save)); (*ret_n)++) {
        const int rank = *ret_base + *ret_n;
        if (rank >= t->world || is_own(t, rank) || !parse_ms(at, ':', now, &lived, &at) ||
            !parse_processes(t, at, rank, *ret_base))
            return false;
        t->lived_ns[rank] = lived;
        t->remote[rank] = (struct remote){.active_ns = active, .heard_ns = now};
    }
    return *ret_n > 0;
}

static void name_late(const struct hang_witness *t, int base, int n, char *answer, size_t cap)
{
    char ranks[256] = "";
    struct ranges r = {.out = ranks, .cap = sizeof ranks};
    for (int i = base; i < base + n; i++)
        if (witness_names(&t->m, i))
            ranges_add(&r, i);
    const bool fits = strlen(ranks) + sizeof NAMES < cap; /* else, where very many are */
    snprintf(answer, cap, NAMES "%s", !ranks[0] ? "-" : fits ? ranks : "*");
}

bool hang_witness_hear(struct hang_watch *w, const char *text, size_t n, char *answer, size_t cap, bool *ret_good)
{
    struct hang_witness *t = w->witness;
    int base, count;
    if (n < sizeof TELLS || memcmp(text, TELLS, sizeof TELLS - 1) != 0)
        return false;
    char *copy = strndup(text, n);
    *ret_good = t && t->world && t->leads && copy && parse_tell(t, copy, clock_ns(), &base, &count);
    if (*ret_good)
        name_late(t, base, count, answer, cap);
    free(copy);
    return true;
}

static bool is_listed(const char *ranks, int rank)
{
    for (const char *p = ranks; *p; p += *p == ',') {
        char *end;
        const long first = strtol(p, &end, 10), last = *end == '-' ? strtol(end + 1, &end, 10) : first;
        if (end == p)
            return *p == '*';
        if (rank >= first && rank <= last)
            return true;
        p = end;
    }
    return false;
}

bool hang_witness_answer(struct hang_watch *w, const char *answer)
{
    struct hang_witness *t = w->witness;
    if (strncmp(answer, NAMES, sizeof NAMES - 1) != 0)
        return false;
    if (!t || !t->world)
        return true;
    const bool before = t->any_late;
    t->any_late = false;
    for (int i = 0; i < w->n; i++) {
        t->local[i].late = is_listed(answer + sizeof NAMES - 1, t->base + i);
        t->any_late = t->any_late || t->local[i].late;
    }
    if (t->any_late && !before) {
        w->quiet.sign_ns = min_i64(w->quiet.sign_ns, hang_witness_last(w));
        show_stacks(w);
    }
    return true;
}

/* --- for hang_quiet.c */

bool hang_witness_names(const struct hang_watch *w, int rank)
{
    const struct hang_witness *t = w->witness;
    if (!t)
        return false;
    return t->leads ? witness_names(&t->m, rank) : t->any_late && is_own(t, rank) && t->local[rank - t->base].late;
}

bool hang_witness_is_naming(const struct hang_watch *w)
{
    const struct hang_witness *t = w->witness;
    return t && (t->leads ? t->m.state == WITNESS_NAMED : t->any_late);
}

int64_t hang_witness_last(const struct hang_watch *w)
{
    const struct hang_witness *t = w->witness;
    int64_t last = 0;
    for (int r = 0; r < (t->leads ? t->world : w->n); r++)
        if (hang_witness_names(w, t->leads ? r : t->base + r))
            last = max_i64(last, t->lived_ns[r]);
    return last;
}

const char *hang_witness_text(const struct hang_watch *w)
{
    const struct hang_witness *t = w->witness;
    const enum ras_finding f = t ? t->m.verdict.finding : RAS_KNOWS_NOTHING;
    const bool names = hang_witness_is_naming(w), told = t && t->leads && t->m.first.version > 0;
    return told && (names || f == RAS_ALIKE || f == RAS_KNOWS_NOTHING) ? t->m.verdict.text : "";
}

/* --- life */

static void on_look(uv_timer_t *timer)
{
    struct hang_witness *t = container_of(timer, struct hang_witness, timer);
    struct hang_watch *w = t->watch;
    const int64_t now = clock_ns(), looked = t->looked_ns;
    int64_t active;
    t->looked_ns = now;
    if (!w->o.is_running(w->o.arg) || now - looked > 2 * look_ns(t) + LATE_TELL_NS) { /* paused, or crun was stopped */
        excuse(t, now);
        return;
    }
    if (w->save)
        return;
    hang_read_workers(w);
    if (hang_tells(w->workers, w->n)) /* steps are better evidence */
        return;
    hang_read_processes(w, now);
    if (w->was_traced) { /* by a debugger */
        excuse(t, now);
        return;
    }
    take_signs(t, now);
    if (!t->leads && (t->any_late || now - t->active_ns >= t->m.quiet_ns))
        tell(t, now);
    else if (t->leads && job_is_known(t, now, &active))
        act(t, witness_look(&t->m, now, active, t->lived_ns));
}

void hang_witness_end(struct hang_watch *w)
{
    struct hang_witness *t = w->witness;
    if (!t)
        return;
    uv_timer_stop(&t->timer);
    end_question(t);
    witness_end_round(&t->m);
    free(t->local);
    free(t->lived_ns);
    free(t->remote);
    free(t->job.processes);
    free(t->job.places);
    t->local = NULL;
    t->lived_ns = NULL;
    t->remote = NULL;
    t->job = (struct ras_job){0};
    t->world = 0;
}

int hang_witness_begin(struct hang_watch *w, int64_t now, int base, int world, bool leads)
{
    struct hang_witness *t = w->witness;
    if (!t)
        return 0;
    hang_witness_end(w);
    const size_t n = (size_t)w->n, ranks = leads ? (size_t)world : n;
    const uint64_t look_ms = (uint64_t)(look_ns(t) / 1000000);
    t->base = base;
    t->leads = leads;
    t->said = t->any_late = false;
    t->looked_ns = now;
    t->changes = 0;
    t->local = calloc(n, sizeof *t->local);
    t->lived_ns = calloc(ranks, sizeof *t->lived_ns);
    t->remote = calloc(ranks, sizeof *t->remote);
    if (!t->local || !t->lived_ns || !t->remote || witness_begin_round(&t->m, now, world) < 0)
        return -ENOMEM;
    t->world = world;
    excuse(t, now);
    const char *bad = ras_typed_badly();
    char text[160];
    snprintf(text, sizeof text, RAS_VARIABLE " is '%.60s', which is no address with a port: unset it, or HOST:PORT",
             bad ? bad : "");
    if (ras_is_off())
        say_once(t, "NCCL_RAS_ENABLE is 0");
    else if (bad)
        say_once(t, text);
    else
        uv_timer_start(&t->timer, on_look, look_ms, look_ms);
    return 0;
}

int hang_witness_open(struct hang_watch *w)
{
    struct hang_witness *t = calloc(1, sizeof *t);
    if (!t)
        return -ENOMEM;
    t->watch = w;
    witness_init(&t->m, w->o.hang.witness_ns);
    uv_timer_init(w->o.loop, &t->timer);
    w->witness = t;
    return 0;
}

static void on_closed(uv_handle_t *h)
{
    free(container_of(h, struct hang_witness, timer));
}

void hang_witness_close(struct hang_watch *w)
{
    struct hang_witness *t = w->witness;
    if (!t)
        return;
    hang_witness_end(w);
    w->witness = NULL;
    uv_close((uv_handle_t *)&t->timer, on_closed);
}
