/* Parses an answer of NCCL's RAS (ras_answer.h). */
#include "launcher/witness/ras_answer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "common/json/json.h"

#define COUNT_MAX 9007199254740992.0 /* 2^53: up to there each count has a double of its own */

/* --- processes: by pid, and by host if two nodes have the same pid */

int ras_job_copy(struct ras_job *ret, const struct ras_job *from)
{
    *ret = (struct ras_job){.n_processes = from->n_processes, .n_places = from->n_places};
    ret->processes = calloc(from->n_processes + 1, sizeof *ret->processes);
    ret->places = calloc(from->n_places + 1, sizeof *ret->places);
    if (!ret->processes || !ret->places)
        return -ENOMEM;
    if (from->n_processes)
        memcpy(ret->processes, from->processes, from->n_processes * sizeof *ret->processes);
    if (from->n_places)
        memcpy(ret->places, from->places, from->n_places * sizeof *ret->places);
    return 0;
}

struct reader {
    const struct ras_job *job;
    struct ras_answer *a;
};

static int by_pid(const void *x, const void *y)
{
    const struct ras_process *a = x, *b = y;
    return a->pid != b->pid ? (a->pid > b->pid) - (a->pid < b->pid) : a->rank - b->rank;
}

/* How many there are; *ret: the first. */
static size_t with_pid(const struct reader *r, pid_t pid, const struct ras_process **ret)
{
    const struct ras_process key = {.pid = pid, .rank = -1};
    size_t low = 0, high = r->job->n_processes, n = 0;
    while (low < high) {
        const size_t mid = low + (high - low) / 2;
        if (by_pid(&r->job->processes[mid], &key) < 0)
            low = mid + 1;
        else
            high = mid;
    }
    *ret = r->job->processes + low;
    while (low + n < r->job->n_processes && (*ret)[n].pid == pid)
        n++;
    return n;
}

static bool runs(const struct reader *r, const char *host, int node)
{
    for (size_t i = 0; i < r->job->n_places; i++)
        if (r->job->places[i].node == node && strcmp(r->job->places[i].host, host) == 0)
            return true;
    return false;
}

/* The rank of a process; -1: not a process of the job, or ambiguous. */
static int rank_of(const struct reader *r, const char *host, pid_t pid)
{
    const struct ras_process *v;
    const size_t n = with_pid(r, pid, &v);
    int rank = n == 1 ? v->rank : -1;
    for (size_t i = 0; n > 1 && i < n; i++)
        if (runs(r, host, v[i].node)) {
            if (rank >= 0)
                return -1;
            rank = v[i].rank;
        }
    return rank;
}

/* --- communicators */

static int type_index(struct ras_answer *a, const char *name)
{
    for (int i = 0; i < a->n_types; i++)
        if (strcmp(a->types[i], name) == 0)
            return i;
    if (a->n_types == RAS_TYPES_MAX || strlen(name) >= sizeof a->types[0])
        return -1;
    memcpy(a->types[a->n_types], name, strlen(name) + 1);
    return a->n_types++;
}

static bool is_true(const cJSON *status, const char *name)
{
    return cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(status, name));
}

/* Parse a rank. false: it is initializing, ending, has an error, or a count that is none. */
static bool read_rank(struct ras_answer *a, const cJSON *item, struct ras_rank *ret)
{
    const cJSON *status = cJSON_GetObjectItemCaseSensitive(item, "status"), *count;
    bool counted = true;
    cJSON_ArrayForEach(count, cJSON_GetObjectItemCaseSensitive(item, "collective_counts"))
    {
        const bool is_count = cJSON_IsNumber(count) && count->valuedouble >= 0 && count->valuedouble <= COUNT_MAX;
        const int i = count->string && is_count ? type_index(a, count->string) : -1;
        counted = counted && is_count;
        if (i >= 0)
            ret->counts[i] = (uint64_t)count->valuedouble;
    }
    return counted && json_int_or(status, "init_state", -1) == 0 && json_int_or(status, "async_error", 0) == 0 &&
           !is_true(status, "finalize_called") && !is_true(status, "destroy_flag") && !is_true(status, "abort_flag");
}

/* Parse a missing rank. false: its process lives, but is not a member any more. */
static bool read_missing(const cJSON *item, struct ras_rank *ret)
{
    const cJSON *status = cJSON_GetObjectItemCaseSensitive(item, "status");
    ret->missing = is_true(status, "unresponsive") || is_true(status, "considered_dead");
    return ret->missing;
}

static int by_rank(const void *x, const void *y)
{
    const struct ras_rank *a = x, *b = y;
    if (a->rank != b->rank)
        return a->rank - b->rank;
    return a->place != b->place ? (a->place > b->place) - (a->place < b->place) : a->missing - b->missing;
}

/* What is listed twice counts once: as it is where it answers. */
static void sort_ranks(struct ras_comm *c)
{
    int n = 0;
    qsort(c->ranks, (size_t)c->n, sizeof *c->ranks, by_rank);
    for (int i = 0; i < c->n; i++)
        if (n == 0 || c->ranks[n - 1].rank != c->ranks[i].rank || c->ranks[n - 1].place != c->ranks[i].place)
            c->ranks[n++] = c->ranks[i];
    c->n = n;
}

static int by_name(const void *x, const void *y)
{
    const struct ras_comm *a = x, *b = y;
    const int order = strcmp(a->hash, b->hash);
    return order ? order : strcmp(a->second, b->second);
}

static void add_rank(struct reader *r, struct ras_comm *c, const cJSON *item, bool here)
{
    struct ras_rank *k = &c->ranks[c->n];
    k->place = json_int_or(item, "rank", -1);
    k->rank = rank_of(r, json_str_or(item, "host", ""), json_int_or(item, "pid", -1));
    const bool settled = here ? read_rank(r->a, item, k) : read_missing(item, k);
    c->settled = c->settled && settled && k->rank >= 0;
    if (k->rank >= 0)
        r->a->ours++;
    else
        r->a->strangers++;
    c->n += k->rank >= 0;
}

static int read_comm(struct reader *r, const cJSON *item, struct ras_comm *c, struct err *e)
{
    const cJSON *here = cJSON_GetObjectItemCaseSensitive(item, "ranks"), *rank;
    const cJSON *missing = cJSON_GetObjectItemCaseSensitive(item, "missing_ranks");
    const char *hash;
    TRY(json_str(item, "hash", &hash, e));
    snprintf(c->hash, sizeof c->hash, "%s", strncmp(hash, "0x", 2) == 0 ? hash + 2 : hash);
    snprintf(c->second, sizeof c->second, "%s", json_str_or(item, "secondary_hash", ""));
    if (c->hash[strspn(c->hash, "0123456789abcdefABCDEF")])
        return err_set(e, ERR_CORRUPT, "member 'hash' is no number");
    c->size = json_int_or(item, "size", -1);
    c->settled = true;
    c->ranks = calloc((size_t)cJSON_GetArraySize(here) + (size_t)cJSON_GetArraySize(missing) + 1, sizeof *c->ranks);
    if (!c->ranks)
        return err_errno(e, ENOMEM, "an answer of RAS");
    cJSON_ArrayForEach(rank, here) add_rank(r, c, rank, true);
    cJSON_ArrayForEach(rank, missing) add_rank(r, c, rank, false);
    sort_ranks(c);
    c->settled = c->settled && c->n == c->size;
    return 0;
}

static int read_tree(struct reader *r, const cJSON *tree, struct err *e)
{
    struct ras_answer *a = r->a;
    const cJSON *comms = cJSON_GetObjectItemCaseSensitive(tree, "communicators"), *item;
    const char *version;
    int part[3] = {0};
    TRY(json_str(tree, "nccl_version", &version, e));
    if (sscanf(version, "%2d.%2d.%2d", &part[0], &part[1], &part[2]) < 2 || !cJSON_IsArray(comms))
        return err_set(e, ERR_CORRUPT, "it has no version and communicators");
    a->version = part[0] * 10000 + part[1] * 100 + part[2];
    snprintf(a->version_text, sizeof a->version_text, "%d.%d.%d", part[0], part[1], part[2]);
    a->comms = calloc((size_t)cJSON_GetArraySize(comms) + 1, sizeof *a->comms);
    if (!a->comms)
        return err_errno(e, ENOMEM, "an answer of RAS");
    cJSON_ArrayForEach(item, comms) TRY(read_comm(r, item, &a->comms[a->n_comms++], e));
    qsort(a->comms, (size_t)a->n_comms, sizeof *a->comms, by_name);
    return 0;
}

int ras_answer_read(const struct buf *text, const struct ras_job *job, struct ras_answer *ret, struct err *e)
{
    struct reader r = {.job = job, .a = ret};
    *ret = (struct ras_answer){0};
    qsort(job->processes, job->n_processes, sizeof *job->processes, by_pid);
    cJSON *tree = NULL;
    int rc = json_read_text(text, "answer", &tree, e);
    rc = rc ? rc : read_tree(&r, tree, e);
    cJSON_Delete(tree);
    if (rc < 0)
        ras_answer_free(ret);
    return rc;
}

void ras_answer_free(struct ras_answer *a)
{
    for (int i = 0; a->comms && i < a->n_comms; i++)
        free(a->comms[i].ranks);
    free(a->comms);
    *a = (struct ras_answer){0};
}
