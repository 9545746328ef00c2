/* Makes a leader from its decisions (leader.h): reads what leader_log.c has written, in the same order. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "common/rdzv/leader/leader_impl.h"
#include "common/rdzv/wire/rdzv_wire.h"

struct reading {
    struct leader *l;
    int64_t now;
};

static int text_field(const char *p, size_t n, const char *key, char *ret, size_t cap, struct err *e)
{
    if (rdzv_field_find(p, n, key, ret, cap) == 1)
        return 0;
    return err_set(e, ERR_CORRUPT, "a line has no good field '%s'", key);
}

static int number_field(const char *p, size_t n, const char *key, long long *ret, struct err *e)
{
    char text[32], *end;
    TRY(text_field(p, n, key, text, sizeof text, e));
    errno = 0;
    *ret = strtoll(text, &end, 10);
    if (errno || !text[0] || *end)
        return err_set(e, ERR_CORRUPT, "%s=%s: expected a number", key, text);
    return 0;
}

static int check_format(const char *p, size_t n, struct err *e)
{
    long long format;
    TRY(number_field(p, n, "format", &format, e));
    if (format >= LEADER_FORMAT_OLDEST && format <= LEADER_FORMAT)
        return 0;
    return err_set(e, ERR_MISMATCH, "its format is %lld, but this program reads formats %d and %d", format,
                   LEADER_FORMAT_OLDEST, LEADER_FORMAT);
}

static int name(char **ret, const char *p, size_t n, const char *key, struct err *e)
{
    char text[LEADER_NAME_MAX + 1], *copy;
    TRY(text_field(p, n, key, text, sizeof text, e));
    if (!(copy = strdup(text)))
        return err_set(e, -ENOMEM, "no memory for a name");
    free(*ret);
    *ret = copy;
    return 0;
}

static int take_job(struct reading *r, const char *p, size_t n, struct err *e)
{
    struct leader *l = r->l;
    char instance[LEADER_INSTANCE_LEN + 1], former[LEADER_INSTANCE_LEN + 1] = "";
    struct rdzv_config c;
    TRY(check_format(p, n, e));
    rdzv_config_defaults(&c);
    TRY(text_field(p, n, "instance", instance, sizeof instance, e));
    if (rdzv_field_find(p, n, "former", former, sizeof former) < 0)
        return err_set(e, ERR_CORRUPT, "a line has no good field 'former'");
    TRY(name(&l->run, p, n, "run", e));
    TRY(name(&l->principal, p, n, "principal", e));
    TRY(rdzv_config_decode(p, n, &c, e));
    struct leader_member *m, *next;
    HASH_ITER (hh, l->members, m, next) /* what was before is void */
        leader_drop_(l, m);
    rdzv_destroy(l->machine); /* the job begins anew: keep nothing of the machine before */
    l->machine = NULL;
    TRY(leader_begin_(l, &c, instance, r->now, e));
    memcpy(l->former, former, sizeof l->former);
    return 0;
}

static int member_of(struct reading *r, const char *p, size_t n, struct leader_member **ret, struct err *e)
{
    char node[RDZV_ID_MAX + 1];
    TRY(text_field(p, n, "host_node", node, sizeof node, e));
    if (!node[0])
        return err_set(e, ERR_CORRUPT, "a line of no node");
    *ret = leader_find(r->l, node);
    return *ret ? 0 : leader_add_(r->l, node, ret, e);
}

static int take_news(struct reading *r, const char *p, size_t n, struct err *e)
{
    struct rdzv_news news;
    struct leader_member *m;
    TRY(rdzv_news_decode(p, n, &news, e));
    TRY(member_of(r, p, n, &m, e));
    TRY(text_field(p, n, "instance", m->instance, sizeof m->instance, e));
    m->news = news;
    m->has_news = true;
    m->seq = news.seq > m->seq ? news.seq : m->seq;
    return 0;
}

static int take_elder(struct reading *r, const char *p, size_t n, struct err *e)
{
    struct leader_member *m;
    TRY(member_of(r, p, n, &m, e));
    leader_elder_(r->l, m, true);
    m->heard_ms = r->now;
    return 0;
}

#define AGE_MOST_MS (INT64_C(1) << 52) /* an older job is none */

static int take_age(struct reading *r, const char *p, size_t n, struct err *e)
{
    const long long at = rdzv_field_number(p, n, "at", 0);
    long long ms;
    TRY(number_field(p, n, "ms", &ms, e));
    const int64_t since = at > 0 && r->l->o.wall_ms ? r->l->o.wall_ms() - at : 0;
    if (ms >= 0 && ms < AGE_MOST_MS && since < AGE_MOST_MS) {
        r->l->history.counted_ms = r->now - ms;
        r->l->history.started_ms = r->now - ms - (since > 0 ? since : 0);
    }
    return 0;
}

static int take_restart(struct reading *r, const char *p, size_t n, struct err *e)
{
    long long at, round, code, rank;
    struct leader_history *h = &r->l->history;
    struct leader_restart *to = &h->restarts[h->restart_count % LEADER_RESTARTS];
    TRY(number_field(p, n, "at", &at, e));
    TRY(number_field(p, n, "round", &round, e));
    TRY(number_field(p, n, "code", &code, e));
    TRY(number_field(p, n, "rank", &rank, e));
    TRY(text_field(p, n, "text", to->cause.text, sizeof to->cause.text, e));
    to->at_ms = at;
    to->round = (uint64_t)round;
    to->cause.exit_code = (int)code;
    to->cause.rank = (int)rank;
    h->restart_count++;
    if (h->started_ms > r->now - at)
        h->started_ms = r->now - at; /* it is at least so old */
    return 0;
}

/* A line of the leader or of its shell: "@word field field". */
static int take_line(struct reading *r, const char *p, size_t n, struct err *e)
{
    static const struct {
        const char *word;
        int (*take)(struct reading *r, const char *p, size_t n, struct err *e);
        bool any; /* allowed before the first job, too */
    } words[] = {{"@job ", take_job, true},
                 {"@age ", take_age, false},
                 {"@news ", take_news, true},
                 {"@elder ", take_elder, false},
                 {"@restart ", take_restart, false}};
    /* "@answer": up to version 0.1 members asked through numbered entries of the home; nothing needs them now */
    if ((n >= 6 && memcmp(p, "@reign", 6) == 0) || (n >= 7 && memcmp(p, "@answer", 7) == 0))
        return 0;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        size_t len = strlen(words[i].word);
        if (n <= len || memcmp(p, words[i].word, len) != 0)
            continue;
        return words[i].any || r->l->machine ? words[i].take(r, p + len, n - len, e)
                                             : err_set(e, ERR_CORRUPT, "its first line is not '@job'");
    }
    return err_set(e, ERR_CORRUPT, "a line begins with '%.*s', which no version writes", n < 16 ? (int)n : 16, p);
}

/* Read a "gone" line of the machine, which forgot a node: the node's news are void, also if it comes back. */
static void note_forgotten(struct reading *r, const char *p, size_t n)
{
    char node[RDZV_ID_MAX + 1];
    struct leader_member *m;
    if (n > 5 && memcmp(p, "gone ", 5) == 0 && rdzv_field_find(p + 5, n - 5, "id", node, sizeof node) == 1 &&
        (m = leader_find(r->l, node)) && m->news.kind != RDZV_NEWS_END)
        m->has_news = false;
}

static int replay_machine(struct reading *r, const char *p, size_t n, struct err *e)
{
    if (n == 0)
        return 0;
    if (!r->l->machine)
        return err_set(e, ERR_CORRUPT, "its first line is not '@job'");
    return rdzv_replay(r->l->machine, p, n, r->now, e);
}

/* Consecutive lines of the machine are handed to it in one piece, before the leader's line that follows them. */
int leader_replay(struct leader *l, const char *text, size_t n, int64_t now_ms, struct err *e)
{
    struct reading r = {.l = l, .now = now_ms};
    const char *end = text + n, *machine = NULL;
    for (const char *at = text; at < end;) {
        const char *nl = memchr(at, '\n', (size_t)(end - at)), *next = nl ? nl + 1 : end;
        if (*at != '@') {
            machine = machine ? machine : at;
            note_forgotten(&r, at, (size_t)((nl ? nl : end) - at));
        } else {
            if (machine)
                TRY(replay_machine(&r, machine, (size_t)(at - machine), e));
            machine = NULL;
            TRY(take_line(&r, at, (size_t)((nl ? nl : end) - at), e));
        }
        at = next;
    }
    return machine ? replay_machine(&r, machine, (size_t)(end - machine), e) : 0;
}

/* --- from now on it is ours */

static int see_node(void *arg, const struct rdzv_member *n)
{
    struct reading *r = arg;
    struct leader_member *m = leader_find(r->l, n->node);
    if (!m)
        TRY(leader_add_(r->l, n->node, &m, NULL));
    leader_set_known_(r->l, m, true, r->now);
    leader_elder_(r->l, m, false); /* it joined later, so its workers were gone */
    return 0;
}

static void restore_member(struct leader *l, struct leader_member *m, int64_t now, int64_t grace_ms)
{
    bool end = m->has_news && m->news.kind == RDZV_NEWS_END;
    struct rdzv_event ev = {.kind = RDZV_SILENT, .grace_ms = grace_ms};
    memcpy(ev.node, m->node, sizeof ev.node);
    m->heard_ms = now + grace_ms;
    if (m->known && !l->over) {
        leader_list_(l, m, LEADER_LIST_SILENT);
        leader_machine_step_(l, &ev, now, NULL);
    } else if (!m->known && !end) { /* stale: news of a node that the machine does not know any more */
        m->has_news = false;
        if (!m->elder)
            leader_drop_(l, m);
    } else if (!m->known) {
        leader_list_(l, m, LEADER_LIST_ENDED);
    }
}

int leader_restore(struct leader *l, int64_t now_ms, int64_t grace_ms, struct err *e)
{
    struct reading r = {.l = l, .now = now_ms};
    struct leader_member *m, *next;
    l->begun = l->changed = false;
    l->restarts_logged = l->history.restart_count;
    if (l->machine && rdzv_members(l->machine, see_node, &r) < 0)
        return err_set(e, -ENOMEM, "no memory for its members");
    l->over = leader_is_final_(l);
    l->over_ms = now_ms;
    for (m = l->members; m && l->over; m = m->hh.next)
        if (m->has_news && m->news.kind == RDZV_NEWS_END && strcmp(m->instance, l->instance) == 0)
            leader_keep_end_(l, &m->news);
    HASH_ITER (hh, l->members, m, next)
        restore_member(l, m, now_ms, grace_ms);
    return leader_check(l, e);
}
